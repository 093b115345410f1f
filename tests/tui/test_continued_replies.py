"""A reply that was cut goes on; a reply's text can be edited."""

from __future__ import annotations

from pathlib import Path

import pytest
from driving import Driver, driving, wait_for
from fake import hello, ready, rounds_of, started, stats_of
from test_chat_archive import kept

from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Cancel, Count, Generate, Message
from specchat.tui.state.reply_figures import Figures
from specchat.tui.state.turn import Reply
from specchat.tui.widgets.reply_view import ReplyView

ASKED = [Message("user", "How does it work?")]


async def cut_reply(d: Driver, upto: int = 6, stop: str = "length") -> list[ev.RoundDone]:
    """A reply that ends in the middle of its text."""
    await d.say(ASKED[0].content)
    rounds = await d.reply(upto=upto, finish=False)
    await d.hear(ev.Finished(d.link.last(Generate).id, stop, "", stats_of(rounds[:upto]), 1.0))
    return rounds


def texts(rounds: list[ev.RoundDone]) -> list[str]:
    return [piece.text for round in rounds for piece in round.pieces]


async def go_on(d: Driver, rounds: list[ev.RoundDone]) -> None:
    """The engine writes the other rounds."""
    generate = d.link.last(Generate)
    at = [ev.RoundDone(**{f: getattr(r, f) for f in r.__struct_fields__} | {"id": generate.id, "index": i})
          for i, r in enumerate(rounds)]  # fmt: skip
    await d.hear(started(generate.messages, generate.id), *at)
    await d.hear(ev.Finished(generate.id, "end", "", stats_of(rounds), 9.0))


async def test_a_cut_reply_goes_on_in_its_place_with_its_seed_and_its_tokens():
    async with driving() as d:
        rounds = await cut_reply(d)
        assert "/continue" in d.drawn(d.view.notice)
        turn = d.app.chat.turns[-1]
        await d.say("/continue")
        generate = d.link.last(Generate)
        assert (generate.messages, generate.seed, generate.begun) == (ASKED, 7, texts(rounds[:6]))
        await go_on(d, rounds[6:])
        assert d.app.chat.turns[-1] is turn
        assert turn.reply.text == "".join(texts(rounds))
        assert [text for text, _ in turn.reply.pieces] == texts(rounds)
        assert turn.place == (1, 1)
        views = list(d.app.query(ReplyView))
        assert len(views) == 1
        assert "τ" in views[0]._figures.text


async def test_a_reply_that_the_user_stopped_goes_on_too():
    async with driving() as d:
        rounds = await cut_reply(d, stop="cancelled")
        await d.say("/continue")
        assert d.link.last(Generate).begun == texts(rounds[:6])
        await d.pilot.press("escape")
        assert d.link.last(Cancel).id == d.link.last(Generate).id


@pytest.mark.parametrize(("stop", "why"), [("end", "complete"), ("stop", "stop string"), ("context", "is full")])
async def test_a_complete_reply_does_not_go_on_and_the_reason_is_said(stop, why):
    async with driving() as d:
        await cut_reply(d, stop=stop)
        await d.say("/continue")
        assert why in d.drawn(d.view.notice)
        assert len(d.generates()) == 1


async def test_without_a_reply_nothing_goes_on():
    async with driving() as d:
        await d.say("/continue")
        assert "no reply yet" in d.drawn(d.view.notice)


async def test_a_reply_that_went_on_is_kept_as_one(tmp_path: Path):
    store = tmp_path / "chats.db"
    async with driving(store=store) as d:
        rounds = await cut_reply(d)
        await d.say("/continue")
        await d.app.context.archive.wait_until_written()
        await go_on(d, rounds[6:])
        d.app.context.archive.close()
        id = d.app.chat.id
    ((_, messages),) = kept(store)
    assert [message.content for message in messages] == [ASKED[0].content, "".join(texts(rounds))]
    assert messages[1].status == "done"
    assert [abs(length) for length in messages[1].pieces] == [len(text) for text in texts(rounds)]
    async with driving(store=store, chat=id) as d:
        assert d.app.chat.turns[-1].reply.text == "".join(texts(rounds))


async def test_a_cut_reply_goes_on_after_a_restart_from_the_same_tokens(tmp_path: Path):
    store = tmp_path / "chats.db"
    async with driving(store=store) as d:
        rounds = await cut_reply(d)
        d.app.context.archive.close()
        id = d.app.chat.id
    async with driving(store=store, chat=id) as d:
        await d.say("/continue")
        generate = d.link.last(Generate)
        assert (generate.seed, generate.begun) == (7, texts(rounds[:6]))
        await go_on(d, rounds[6:9])
        d.app.context.archive.close()
    ((_, messages),) = kept(store)
    assert messages[1].content == "".join(texts(rounds[:9]))


async def test_leaving_while_a_reply_goes_on_keeps_both_parts(tmp_path: Path):
    store = tmp_path / "chats.db"
    async with driving(store=store) as d:
        await cut_reply(d)
        text = d.app.chat.turns[-1].reply.text
        await d.say("/continue")
        d.app.context.archive.close()
    ((_, messages),) = kept(store)
    assert (messages[1].content, messages[1].status) == (text, "interrupted")


async def test_an_edited_reply_is_a_branch_that_later_messages_build_on():
    async with driving() as d:
        await d.say(ASKED[0].content)
        await d.reply()
        before = d.app.chat.turns[-1]
        d.view.transcript.focus()
        await d.pilot.press("E")
        assert d.view.prompt.full_text == before.reply.text
        assert "keeps the reply so" in d.drawn(d.view.notice)
        d.view.prompt.write("/set is a word here, and so is @nothing")
        await d.pilot.press("enter")
        await d.settle()
        turn = d.app.chat.turns[-1]
        assert turn.reply.text == "/set is a word here, and so is @nothing"
        assert turn.place == (2, 2)
        assert before.reply.text in [other.reply.text for other in d.app.chat.branches.siblings(turn)]
        assert "edited" in d.app.query_one(ReplyView)._figures.text
        assert d.view.prompt.text == ""
        assert len(d.generates()) == 1, "nothing is asked of the engine"
        await d.say("and then?")
        said = [*ASKED, Message("assistant", turn.reply.text), Message("user", "and then?")]
        assert d.link.last(Generate).messages == said


async def test_an_edited_reply_goes_on_from_the_words_it_has_now():
    async with driving() as d:
        await d.say(ASKED[0].content)
        await d.reply()
        await d.say("/edit reply")
        d.view.prompt.write("It works because")
        await d.pilot.press("enter")
        await d.say("/continue")
        generate = d.link.last(Generate)
        assert (generate.messages, generate.seed, generate.begun) == (ASKED, None, ["It works because"])
        await go_on(d, rounds_of(" it is so", id=generate.id))
        assert d.app.chat.turns[-1].reply.text == "It works because it is so"


async def test_after_a_reply_that_was_edited_the_context_is_counted_and_nothing_is_claimed_before():
    async with driving() as d:
        assert "0 / 8,192" in d.drawn(d.view.status)
        await d.say(ASKED[0].content)
        rounds = await d.reply()
        last = rounds[-1]
        assert f"{last.context_tokens + len(last.pieces):,} / 8,192" in d.drawn(d.view.status)
        await d.say("/edit reply")
        d.view.prompt.write("It works because")
        await d.pilot.press("enter")
        await d.settle()
        assert "8,192" not in d.screen()
        counts = [command for command in d.link.sent if isinstance(command, Count)]
        assert [count.messages for count in counts] == [[*ASKED, Message("assistant", "It works because")]]
        await d.hear(ev.Counted(counts[0].id, 47, 8192))
        assert "47 / 8,192" in d.drawn(d.view.status)
        await d.say("/continue")
        await go_on(d, rounds_of(" it is so", id=d.link.last(Generate).id))
        assert " / 8,192" in d.drawn(d.view.status)


async def test_the_context_of_a_chat_that_ends_with_an_edited_reply_is_counted_once_its_pair_is_loaded(tmp_path):
    async with driving(store=tmp_path / "chats.db") as d:
        await d.say(ASKED[0].content)
        await d.reply()
        await d.say("/edit reply")
        await d.say("It works because")
        d.view.current_chat.close()
        id = d.app.chat.id
    async with driving(store=tmp_path / "chats.db", chat=id, loaded=False) as d:
        await wait_for(d.pilot, lambda: d.app.chat.turns)
        assert not any(isinstance(command, Count) for command in d.link.sent)
        await d.hear(hello(), ready())
        (count,) = [command for command in d.link.sent if isinstance(command, Count)]
        await d.hear(ev.Counted(count.id, 47, 8192))
        assert "47 / 8,192" in d.drawn(d.view.status)


async def test_escape_leaves_a_reply_as_it_is():
    async with driving() as d:
        await d.say(ASKED[0].content)
        await d.reply("the answer")
        await d.say("/edit reply")
        await d.pilot.press("escape")
        assert d.app.chat.editing is None
        assert d.view.prompt.text == ""
        assert d.app.chat.turns[-1].reply.text == "the answer"


def test_half_a_character_at_the_cut_is_written_again():
    reply = Reply(1, Figures(), stop="length")
    for text, origin in (("go", "drafted"), (" on", "target"), ("\ufffd", "target")):
        reply.add(text, origin)
    assert reply.go_on(2) == ["go", " on"]
    assert reply.text == "go on"
    assert reply.lengths == [2, -3]
    assert reply.stop is None
