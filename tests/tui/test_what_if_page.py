"""`/whatif`, its page, and the preview of settings: what is asked of the engine, and the answer as people read it."""

from __future__ import annotations

import msgspec
import pytest
from driving import Driver, driving, wait_for
from fake import SETTINGS, ready, rounds_of

from specchat.engine.protocol import events as ev
from specchat.engine.protocol import round_parts
from specchat.engine.protocol.codec import check
from specchat.engine.protocol.commands import Cancel, WhatIf
from specchat.errors import UsageError
from specchat.tui.screens.what_if import WhatIfScreen
from specchat.tui.state.turn import ReplyRounds
from specchat.tui.state.what_if import RedoneReply, comparison, pairs_of, sentence, would_have_been

OWN, MORE = ev.RedoneRounds(40, 84, 300, 0.010), ev.RedoneRounds(35, 84, 500, 0.013)


def asked(d: Driver) -> list[WhatIf]:
    return [command for command in d.link.sent if isinstance(command, WhatIf)]


def page(d: Driver) -> WhatIfScreen:
    assert isinstance(d.app.screen, WhatIfScreen)
    return d.app.screen


def test_the_sentence_has_the_numbers_of_the_answer():
    changes = {"nodes": 16, "depth": 6}
    sure = ev.WouldBe(1, OWN, MORE, decided=True, measured=True)
    assert sentence(changes, sure) == ("16 nodes, depth 6: 2.4 instead of 2.1 a round, at 1.3 × the price: 12 % slower")
    doubtful = ev.WouldBe(1, OWN, MORE, full=True)
    assert sentence({"nodes": 1}, doubtful, "in its first 64 tokens") == (
        "1 node: 2.4 instead of 2.1 a round, at 1.3 × the price: 12 % slower, in its first 64 tokens, "
        "guessing in full (estimate: its text would have become another; prices by these rounds alone)"
    )
    assert comparison(ev.WouldBe(1, OWN, OWN)) == "2.10 a round as before, at 1.0 × the price: as fast"
    cheap = ev.RedoneRounds(35, 84, 500, 0.010)
    assert comparison(ev.WouldBe(1, OWN, cheap)) == "2.4 instead of 2.1 a round, at 1.0 × the price: 14 % faster"
    assert pairs_of("nodes=16 depth 6") == pairs_of("nodes = 16 depth=6") == [("nodes", "16"), ("depth", "6")]
    for wrong in ("", "nodes", "nodes=16 depth"):
        with pytest.raises(UsageError, match="/whatif wants"):
            pairs_of(wrong)


async def test_a_round_is_shown_beside_what_it_would_have_been():
    async with driving() as d:
        for refused, why in (
            ("/whatif nodes=16", "there is no reply yet"),
            ("/whatif nodse=16", "not 'nodse'"),
            ("/whatif dtype=bfloat16", "asks about how to guess"),
            ("/whatif nodes=9999", "nodes"),
        ):
            await d.say(refused)
            await d.until(why)
        d.view.prompt.clear()
        await d.say("How?")
        rounds = await d.reply()
        before = dict(d.app.chat.engine.settings), len(d.app.chat.turns)
        await d.say("/whatif nodes=32 width 2")
        await wait_for(d.pilot, lambda: asked(d))
        (question,) = asked(d)
        check(question)
        at = page(d)._at
        assert question.changes == {"nodes": 32, "width": 2}
        assert question.own == {name: SETTINGS[name] for name in question.own}
        assert {"drafter", "temperature", "depth", "top_p"} <= question.own.keys()
        assert (question.pair, question.seed, question.messages[-1].content) == ("smol", 7, "How?")
        assert question.tokens == [piece.token for round in rounds for piece in round.pieces]
        assert question.at == sum(len(round.pieces) for round in rounds[:at])
        assert len(rounds[at].verdict.path) == max(len(round.verdict.path) for round in rounds)
        await d.until("doing the reply once more …")
        await d.hear(ev.Redoing(question.id, 45, 60))
        await d.until("doing the reply once more 75 %")
        then = msgspec.structs.replace(rounds_of()[2], id=question.id)
        await d.hear(ev.WouldBe(question.id, OWN, MORE, True, True, round=then))
        screen = await d.until("2.4 instead of 2.1 a round, at 1.3 × the price: 12 % slower")
        assert f"round {at + 1} as it was · kept {len(rounds[at].verdict.path)} of" in screen
        assert f"with 32 nodes, width 2 · kept {len(then.verdict.path)} of" in screen
        assert then.verdict.bonus_text.strip() in screen
        await d.pilot.press("right", "right", "down", "pageup")
        await wait_for(d.pilot, lambda: len(asked(d)) == 2)  # keys in a row are one question
        assert asked(d)[1].changes == {"nodes": 128, "width": 2, "depth": 7}
        assert asked(d)[1].at == sum(len(round.pieces) for round in rounds[: at - 1])
        await d.hear(
            ev.WouldBe(question.id, OWN, MORE, True, True)
        )  # the answer to an earlier question is none to this
        assert page(d).answer is None
        await d.hear(ev.Failed("CombinationError", "these do not go together", 2, asked(d)[1].id, "what_if"))
        await d.until("these do not go together")
        await d.pilot.press("less_than_sign")
        await wait_for(d.pilot, lambda: len(asked(d)) == 3)
        await d.pilot.press("escape")
        assert d.link.sent[-1] == Cancel(asked(d)[2].id)
        assert (dict(d.app.chat.engine.settings), len(d.app.chat.turns)) == before
        for size in ((80, 24), (60, 20)):
            await d.pilot.resize_terminal(*size)
            await d.say("/whatif depth=2")
            await wait_for(d.pilot, lambda: isinstance(d.app.screen, WhatIfScreen) and page(d)._asked)
            await d.hear(ev.WouldBe(page(d)._asked, OWN, MORE, True, True, round=then))
            screen = await d.until("12 % slower")
            assert "as it was · kept" in screen
            assert "with depth 2 · kept" in screen
            await d.pilot.press("escape")


async def test_the_key_in_the_tree_asks_about_the_round_that_is_chosen():
    async with driving() as d:
        await d.say("How?")
        await d.reply()
        d.view.tree_panel.focus()
        await d.pilot.press("pageup", "w")
        await wait_for(d.pilot, lambda: asked(d))
        pinned = d.view.tree_panel.round
        assert page(d).redone.rounds[page(d)._at] is pinned
        assert asked(d)[0].changes == {"nodes": 32}, "where nothing changed it asks about more guesses"


def round_of(nodes: list[tuple[int, str, float | None]], path: list[int], bonus: str, verify_s: float) -> ev.RoundDone:
    """A round whose nodes have these parents, texts and log-probabilities of the drafter."""
    texts = ["root", *(text for _, text, _ in nodes)]
    draws = [round_parts.Draw(child, "point", "d", logprob) for child, (_, _, logprob) in enumerate(nodes, 1)]
    parents = [-1, *(parent for parent, _, _ in nodes)]
    visited = {0, *path}
    reasons = [
        "accepted" if node in visited else "rejected" if parents[node] in visited else "unreached"
        for node in range(len(texts))
    ]
    told = [-0.5 if parent in visited else None for parent in parents]
    emitted = [*(texts[node] for node in path), bonus]
    return msgspec.structs.replace(
        rounds_of()[0],
        budget={"nodes": 5, "depth": 3, "width": 2},
        tree=round_parts.Tree(list(range(len(texts))), parents, texts, draws, told),
        verdict=round_parts.Verdict(path, 99, bonus, -0.2, reasons),
        pieces=[round_parts.Piece(1, text, "drafted" if n < len(path) else "target") for n, text in enumerate(emitted)],
        timings=round_parts.Timings(0.001, verify_s, 0.0),
    )


def test_kept_rounds_tell_what_smaller_trees_would_have_kept():
    # root ┬ a ┬ b ─ d      b and d are of the text, as e and f, the bonus tokens; x is the likeliest guess, and wrong
    #      └ x └ y
    nodes = [(0, "a", -0.5), (0, "x", -0.1), (1, "b", -0.9), (1, "y", -0.2), (3, "d", -0.1)]
    rounds = [
        round_of(nodes, [1, 3, 5], "e", 0.006),
        round_of([], [], "f", 0.001),
        round_of(nodes[:2], [1], "g", 0.003),
    ]
    own = {"nodes": 5, "depth": 3, "width": 2}

    def told(**changes: int) -> tuple[list[str], str | None, int, float]:
        answer = would_have_been(rounds, 0, own, changes)
        assert answer.own.tokens == answer.other.tokens == 7
        check(answer)
        return answer.round.tree.texts, answer.round.verdict.bonus_text, answer.other.rounds, answer.other.round_s

    assert told(nodes=5)[:3] == (["root", "a", "x", "b", "y", "d"], "e", 3)
    # the two likeliest are x and a; then b is the root of two further rounds: (b, d) has room for both
    texts, bonus, count, seconds = told(nodes=2)
    assert (texts, bonus, count) == (["root", "a", "x"], "b", 4)
    assert seconds == pytest.approx((0.004 + 0.003 + 0.001 + 0.004) / 4)  # a pass of 2 rows is between those of 1 and 3
    assert told(depth=1)[:3] == (["root", "a", "x"], "b", 4)
    assert told(depth=2)[:3] == (["root", "a", "x", "b", "y"], "d", 4)
    assert told(width=1)[:3] == (["root", "x"], "a", 6), "the first child is the likeliest, which is wrong"
    assert told(nodes=0)[:3] == (["root"], "a", 7)
    cut = would_have_been(rounds, 0, own, {"depth": 2}).round
    assert [piece.text for piece in cut.pieces] == ["a", "b", "d"]
    assert [piece.origin for piece in cut.pieces] == ["drafted", "drafted", "target"]
    assert cut.verdict.reasons == ["accepted", "accepted", "rejected", "accepted", "rejected"]
    for changes, why in (({"nodes": 9}, "made with nodes 5"), ({"policy": "chain"}, "policy takes the model")):
        with pytest.raises(UsageError, match=why):
            would_have_been(rounds, 0, own, changes)


async def test_without_its_model_a_reply_is_told_of_by_its_kept_rounds():
    async with driving() as d:
        await d.say("How?")
        rounds = await d.reply()
        await d.hear(ready(pair="qwen", settings={**SETTINGS, "pair": "qwen"}))
        await d.say("/whatif nodes=2")
        screen = await d.until("a round, at")
        assert "by the rounds as they were kept, no model asked" in " ".join(screen.replace("│", " ").split())
        await d.pilot.press("plus", "plus", "plus", "plus", "plus")
        await d.until("takes the model · the reply was written with smol; /pair smol loads that")
        await d.pilot.press("escape")
        d.view.tree_panel.focus()
        await d.pilot.press("w")
        assert page(d).changes["nodes"] < SETTINGS["nodes"], "where no engine is asked it is fewer guesses"
        assert page(d).answer is not None
        await d.pilot.press("escape")
        reply = d.app.chat.last_reply()
        assert reply is not None
        assert reply.rounds.list == rounds
        reply.rounds = ReplyRounds()
        d.view.prompt.focus()
        await d.say("/whatif nodes=2")
        await d.until("the rounds of this reply were not kept")
        assert not asked(d)


async def test_a_recording_is_told_of_while_it_plays():
    async with driving() as d:
        await d.say("How?")
        await d.reply(upto=6, finish=False)
        d.view.tree_panel.focus()
        await d.pilot.press("w")
        await d.until("the reply is still being written")
        d.app.chat.background.replaying = True
        await d.pilot.press("w")
        await d.until("by the rounds as they were kept, no model asked")
        assert not asked(d)


async def test_a_reply_whose_pair_is_on_its_way_says_so():
    async with driving() as d:
        await d.say("How?")
        reply = (await d.reply(), d.app.chat.last_reply())[1]
        engine = d.app.chat.engine
        engine.load({})
        engine.ready = None
        with pytest.raises(UsageError, match="smol is still being loaded"):
            RedoneReply.of(d.app.chat, reply)


async def test_settings_are_previewed_on_the_last_reply_while_nothing_is_asked_for():
    async def change(d: Driver, **settings: object) -> None:
        await d.hear(ev.Changed({**SETTINGS, **settings}, ev.Losslessness(True, "")))

    async with driving() as d:
        await d.pilot.press("f2")
        await change(d, nodes=32)
        await d.pilot.pause(0.6)
        assert not asked(d), "there is no reply to look at"
        await change(d)
        await d.pilot.press("f2")
        await d.say("How?")
        await d.reply()
        await d.pilot.press("f2")
        await d.pilot.pause(0.6)
        assert not asked(d), "nothing changed since"
        await change(d, nodes=32)
        await wait_for(d.pilot, lambda: asked(d))
        (question,) = asked(d)
        check(question)
        assert (question.changes, question.at) == ({"nodes": 32}, None)
        await d.hear(ev.WouldBe(question.id, stopped=True))  # something else was asked for: again when there is time
        await wait_for(d.pilot, lambda: len(asked(d)) == 2)
        await d.hear(ev.WouldBe(asked(d)[1].id, OWN, MORE, True, True))
        await d.until("the last reply: 2.4 instead of")
        lines = d.drawn(d.view.settings_form).splitlines()
        here = next(at for at, line in enumerate(lines) if "2.4 instead of" in line)
        assert "nodes" in lines[here - 1]
        doubtful = d.view.what_ifs._words(ev.WouldBe(1, OWN, MORE, measured=True))
        assert doubtful.startswith("an estimate for the last reply: 2.4 instead of 2.1"), "so it says even if it is cut"
        await change(d, nodes=32, depth=3)
        await wait_for(d.pilot, lambda: len(asked(d)) == 3)
        assert asked(d)[2].changes == {"nodes": 32, "depth": 3}
        assert "2.4 instead of" not in d.drawn(d.view.settings_form)
        await d.pilot.press("f2")
        await d.settle()
        d.app.redraw()
        assert d.link.sent[-1] == Cancel(asked(d)[2].id), "nobody sees it any more"
