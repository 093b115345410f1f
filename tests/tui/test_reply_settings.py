"""A reply says what it was written with: lossy once any part is, and which settings changed within it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from driving import Driver, driving
from fake import LOSS, SETTINGS, rounds_of, started, stats_of
from msgspec.structs import replace
from test_chat_archive import kept
from test_continued_replies import cut_reply, go_on

from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Generate
from specchat.store.chat_json import write_json
from specchat.store.records import Facts, SettingsChange
from specchat.tui.state.reply_figures import Figures
from specchat.tui.state.stored_chat import as_html, as_markdown
from specchat.tui.state.turn import Reply, changes_text, written_with
from specchat.tui.state.visible_reply import ServedReply

TYPICAL = SETTINGS | {"rule": "typical"}
LOSSY = ev.Losslessness(False, "rule 'typical' changes the target's distribution on purpose")


async def half_lossy(d: Driver) -> list[ev.RoundDone]:
    """A reply of which the rounds 3, 4 and 5 were written under a lossy rule."""
    await d.say("How does it work?")
    generate = d.link.last(Generate)
    rounds = rounds_of(id=generate.id)[:9]
    await d.hear(started(generate.messages, generate.id), *rounds[:3], ev.Changed(TYPICAL, LOSSY), *rounds[3:6])
    await d.hear(ev.Changed(SETTINGS, LOSS), *rounds[6:])
    return rounds


def pieces(rounds: list[ev.RoundDone]) -> int:
    return sum(len(round.pieces) for round in rounds)


async def test_a_reply_partly_written_under_a_lossy_rule_is_lossy_on_the_screen_in_the_store_and_in_exports(
    tmp_path: Path,
):
    store = tmp_path / "chats.db"
    async with driving(store=store) as d:
        rounds = await half_lossy(d)
        assert "! lossy" in d.drawn(d.view.stats)
        await d.hear(ev.Finished(1, "end", "", stats_of(rounds), 9.0))
        assert "! lossy" in d.drawn(d.view.stats)
        assert "lossless" not in d.drawn(d.view.stats)
        assert d.app.chat.last_reply().line().endswith(" · lossy")
        id = d.app.chat.id
        d.app.context.archive.close()
    ((chat, messages),) = kept(store)
    facts = messages[1].facts
    assert facts.loss == {"lossless": False, "reason": LOSSY.reason}
    assert facts.settings == SETTINGS
    assert [(change.piece, change.settings) for change in facts.changes] == [
        (pieces(rounds[:3]), {"rule": "typical"}), (pieces(rounds[:6]), {"rule": "follow"}),
    ]  # fmt: skip
    assert [change.loss["lossless"] for change in facts.changes] == [False, True]
    exported = json.loads(write_json(chat, messages))["messages"][1]["facts"]
    assert (exported["loss"]["lossless"], len(exported["changes"])) == (False, 2)
    assert " · lossy*" in as_markdown(chat, messages)
    assert "lossy · seed 7 · changed within the reply: rule<" in as_html(chat, messages)
    async with driving(store=store, chat=id) as d:
        await d.settle()
        assert "! lossy" in d.drawn(d.view.stats)
        await d.say("and then?")
        await d.reply()
        assert "✓ lossless" in d.drawn(d.view.stats)


async def test_the_panel_tells_of_the_reply_beside_whose_figures_it_stands():
    async with driving() as d:
        await d.hear(ev.Changed(TYPICAL, LOSSY))
        assert "! lossy" in d.drawn(d.view.stats)
        await d.hear(ev.Changed(SETTINGS, LOSS))
        await d.say("hi")
        await d.reply()
        await d.hear(ev.Changed(TYPICAL, LOSSY))
        assert "✓ lossless" in d.drawn(d.view.stats)
        assert "lossy" in d.drawn(d.view.status)


async def test_settings_that_changed_after_the_last_round_have_no_part_in_the_reply():
    async with driving() as d:
        await d.say("hi")
        rounds = await d.reply(upto=5, finish=False)
        await d.hear(ev.Changed(TYPICAL, LOSSY), ev.Finished(1, "cancelled", "", stats_of(rounds[:5]), 9.0))
        facts = d.app.chat.last_reply().facts
        assert facts.loss["lossless"]
        assert not facts.changes


@pytest.mark.parametrize("begins_lossy", [True, False])
async def test_a_reply_that_went_on_is_lossy_if_either_part_is(begins_lossy):
    first, then = ((TYPICAL, LOSSY), (SETTINGS, LOSS))[:: 1 if begins_lossy else -1]
    async with driving() as d:
        await d.hear(ev.Changed(*first))
        await d.say("How does it work?")
        generate = d.link.last(Generate)
        rounds = rounds_of(id=generate.id)
        begun = replace(started(generate.messages, generate.id), settings=first[0], loss=first[1])
        await d.hear(begun, *rounds[:6], ev.Finished(generate.id, "length", "", stats_of(rounds[:6]), 1.0))
        await d.hear(ev.Changed(*then))
        await d.say("/continue")
        generate = d.link.last(Generate)
        more = [replace(round, id=generate.id, index=at) for at, round in enumerate(rounds[6:9])]
        await d.hear(replace(begun, id=generate.id, settings=then[0], loss=then[1]), *more)
        facts = d.app.chat.last_reply().facts
        assert facts.loss == {"lossless": False, "reason": LOSSY.reason}
        assert facts.settings == first[0]
        assert [(change.piece, change.settings) for change in facts.changes] == [
            (pieces(rounds[:6]), {"rule": then[0]["rule"]})
        ]


async def test_a_reply_that_went_on_with_the_same_settings_tells_of_no_change():
    async with driving() as d:
        rounds = await cut_reply(d)
        await d.say("/continue")
        await go_on(d, rounds[6:])
        facts = d.app.chat.last_reply().facts
        assert (facts.settings, facts.changes, facts.loss["lossless"]) == (SETTINGS, [], True)


@pytest.mark.parametrize("apart", [False, True])
def test_a_served_reply_is_lossy_by_the_settings_that_reach_it(apart):
    served = ServedReply(Reply(7, Figures()), "curl", apart=apart)
    rounds = rounds_of(id=7)
    for event in (started([], 7), *rounds[:2], ev.Changed(TYPICAL, LOSSY), *rounds[2:4]):
        served.apply(replace(event, text="so") if isinstance(event, ev.Started) else event)
    assert served.reply.loss is not None
    assert served.reply.loss.lossless == apart


def test_a_pinned_seed_holds_from_the_next_reply_on():
    facts = written_with(Facts(), SETTINGS, LOSS, 0)
    assert written_with(facts, SETTINGS | {"seed": 5}, LOSS, 9) == facts


def test_a_setting_that_an_older_specchat_did_not_know_did_not_change():
    facts = written_with(Facts(), {"width": 4}, LOSS, 0)
    now = written_with(facts, {"width": 5, "new": 1}, LOSS, 9)
    assert now.changes == [SettingsChange(9, {"width": 5}, {"lossless": True, "reason": LOSS.reason})]
    assert changes_text(now) == " · changed within the reply: width"


def test_what_a_forged_file_says_of_loss_is_not_believed():
    assert Reply(1, Figures(), facts=Facts(loss={"lossless": "perhaps"})).loss is None
