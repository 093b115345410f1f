"""Every chat is kept as it goes, and opened again as it was."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from driving import driving, wait_for
from fake import SETTINGS, rounds_of, stats_of
from textual.widgets import Markdown

from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Command, Count, Generate, Message
from specchat.store import writer
from specchat.store.chats import Chats
from specchat.store.database import open_to_read, open_to_write
from specchat.store.records import ChatRecord, Facts, StoredMessage
from specchat.tui.screens.pairs import PairList
from specchat.tui.state.stored_chat import message_of, turn_of
from specchat.tui.widgets.reply_view import ReplyView

WHEN = "2026-01-31T12:00:00.000Z"


def kept(store: Path) -> list[tuple[ChatRecord, list[StoredMessage]]]:
    with open_to_read(store) as connection:
        chats = Chats(connection)
        return [chats.chat(summary.id) for summary in chats.summaries()]


async def test_a_question_is_on_the_disk_before_it_is_answered(store):
    async with driving(store=store) as d:
        send = d.link.send
        seen: list[list[str]] = []

        def sending(command: Command) -> None:
            if isinstance(command, Generate):
                seen.append([message.content for _, messages in kept(store) for message in messages])
            send(command)

        d.link.send = sending
        await d.say("is it safe?")
        assert seen == [["is it safe?", ""]]


async def test_what_the_engine_reads_is_kept_with_chats_that_are_saved_here(store):
    for here, where in ((True, store), (False, store), (True, None)):
        async with driving(store=where, engine_here=here) as d:
            await d.say("hi")
            [asked] = [command for command in d.link.sent if isinstance(command, Generate)]
            assert asked.keep == (d.app.chat.id if here and where else "")
            d.app.chat.running, d.app.chat.unsaved = None, True
            assert d.app.chat.generate().keep == ""


async def test_a_reply_is_kept_while_it_is_written_and_with_its_figures_when_it_is_done(store, monkeypatch):
    monkeypatch.setattr(writer, "FLUSH_S", 0.05)
    async with driving(store=store) as d:
        await d.say("hi")
        rounds = await d.reply(upto=9, finish=False)
        half = "".join(piece.text for round in rounds[:9] for piece in round.pieces)
        await wait_for(d.pilot, lambda: kept(store)[0][1][1].content == half)
        assert kept(store)[0][1][1].status == "streaming"
        await d.hear(ev.Finished(1, "length", "tail", stats_of(rounds), 9.0))
        await wait_for(d.pilot, lambda: kept(store)[0][1][1].status == "done")
        reply = kept(store)[0][1][1]
        assert reply.content == half + "tail"
        assert sum(abs(length) for length in reply.pieces) == len(reply.content)
        assert (reply.facts.pair, reply.facts.seed, reply.facts.stop) == ("smol", 7, "length")
        assert reply.facts.settings == SETTINGS
        assert reply.facts.stats["tokens"] == 200
        assert reply.facts.loss["lossless"] is True


@pytest.mark.parametrize("pair", ["smol", "qwen", ""])
async def test_a_chat_that_another_pair_wrote_says_so_and_offers_it(store, pair):
    with open_to_write(store)[0] as connection:
        record = ChatRecord("c1", "old", WHEN, WHEN, False, "", "m2", None)
        said = StoredMessage("m1", None, "user", "hi", WHEN)
        reply = StoredMessage("m2", "m1", "assistant", "hello", WHEN, "done", [5], Facts(pair=pair, stop="end"))
        chats = Chats(connection)
        chats.save(record)
        chats.add("c1", said)
        chats.add("c1", reply)
    async with driving(store=store, chat="c1") as d:
        await d.until("hello")
        await d.settle()
        assert ("this chat was written with qwen; smol is loaded" in d.screen()) == (pair == "qwen")
        assert ("this chat was written with" in d.screen()) == (pair == "qwen")
        await d.pilot.press("f4")
        await d.settle()
        assert d.app.screen.query_one(PairList).chosen.name == (pair or "smol")


async def test_a_chat_is_called_by_its_first_words_until_it_is_named(store):
    async with driving(store=store) as d:
        await d.say("How does\nit work?")
        await d.reply("so")
        await d.say("/system be brief")
        assert kept(store)[0][0].title == "How does it work?"
        await d.say("/rename  Trees & drafts ")
        await wait_for(d.pilot, lambda: kept(store)[0][0].title == "Trees & drafts")
        assert kept(store)[0][0].renamed
        assert kept(store)[0][0].system == "be brief"


async def test_nothing_is_kept_of_an_empty_chat_and_a_new_one_is_another(store):
    async with driving(store=store) as d:
        await d.say("/system be brief")
        await d.pilot.press("ctrl+n")
        await d.say("one")
        await d.reply("first")
        await d.pilot.press("ctrl+n")
        await d.say("two")
        await d.reply("second")
        assert d.link.last(Generate).messages == [Message("user", "two")]
    assert sorted(chat.title for chat, _ in kept(store)) == ["one", "two"]


async def test_leaving_in_the_middle_of_a_reply_keeps_what_was_written(store):
    async with driving(store=store) as d:
        await d.say("hi")
        await d.reply(upto=5, finish=False)
        text = d.app.chat.running.text
        d.app.context.archive.close()
    reply = kept(store)[0][1][1]
    assert (reply.content, reply.status) == (text, "interrupted")


async def talk(store: Path) -> str:
    """A chat with a system prompt and two answers to its second question, the first of which is read."""
    async with driving(store=store) as d:
        await d.say("/system be brief")
        await d.say("hi")
        await d.reply()
        await d.say("and?")
        await d.reply("answer one")
        await d.say("/retry")
        await d.reply("answer two")
        d.view.transcript.focus()
        await d.pilot.press("left_square_bracket")
        await d.settle()
        d.app.context.archive.close()
        return d.app.chat.id


async def test_a_chat_comes_back_with_its_branches_figures_and_tokens(store):
    id = await talk(store)
    async with driving(store=store, chat=id) as d:
        await d.settle()
        screen = d.screen()
        assert "hi" in screen
        assert "answer one" in screen
        assert "answer two" not in screen
        first = d.app.query(ReplyView).first()
        assert "200\u00a0tok ·" in first._figures.text
        assert "2.7×\u00a0±\u00a00.1\u00a0(12\u00a0plain\u00a0rounds\u00a0here)" in first._figures.text
        assert d.app.chat.system == "be brief"
        assert sorted(d.app.context.archive.current()[1], key=lambda m: m.id) == sorted(
            kept(store)[0][1], key=lambda m: m.id
        )
        d.view.transcript.focus()
        await d.pilot.press("g", "j", "f8")
        await d.pilot.pause()
        words = [piece for round in rounds_of() for piece in round.pieces]
        shown = [(letter, role) for line in first._tokens._lines for text, role in line for letter in text]
        assert shown == [(letter, word.origin) for word in words for letter in word.text if letter != "\n"]
        await d.pilot.press("G", "right_square_bracket")
        await d.settle()
        assert "answer two" in d.screen()
        d.view.prompt.focus()
        await d.say("go on")
        messages = d.link.last(Generate).messages
        assert [m.content for m in messages[-3:]] == ["and?", "answer two", "go on"]
        assert messages[0] == Message("system", "be brief")
        d.app.context.archive.close()
    (chat, messages), *others = kept(store)
    assert others == []
    assert chat.id == id
    assert [message.content for message in messages[1:]][1:] == ["and?", "answer one", "answer two", "go on", ""]


async def test_of_a_long_chat_only_the_end_is_on_the_page_and_all_of_it_is_sent(store):
    connection = open_to_write(store)[0]
    chats = Chats(connection)
    with chats.transaction():
        chats.save(ChatRecord("a", "long", WHEN, WHEN, leaf="m1999"))
        for n in range(2000):
            parent = f"m{n - 1}" if n else None
            text = f"message {n}" + ("" if n % 2 else "\nand more" * 20)
            chats.add("a", StoredMessage(f"m{n}", parent, "assistant" if n % 2 else "user", text, WHEN))
    connection.close()
    async with driving(store=store, chat="a") as d:
        await d.settle()
        assert "message 1999" in d.screen()
        assert len(d.view.transcript.views) < 50
        await d.say("more")
        await d.hear(ev.Counted(d.link.last(Count).id, 5000, 8192))  # of old replies it is not known
        assert len(d.link.last(Generate).messages) == 2001
        d.view.transcript.focus()
        await d.pilot.press("g")
        await d.pilot.pause()
        assert "message 0" in d.screen()


async def test_a_reply_that_was_cut_off_says_so_when_it_is_opened(store):
    connection = open_to_write(store)[0]
    chats = Chats(connection)
    with chats.transaction():
        chats.save(ChatRecord("a", "hi", WHEN, WHEN, leaf="n"))
        chats.add("a", StoredMessage("m", None, "user", "hi", WHEN))
        chats.add("a", StoredMessage("n", "m", "assistant", "half a w", WHEN, "streaming", [4, -4]), owner="gone")
    connection.close()
    async with driving(store=store, chat="a") as d:
        await d.settle()
        assert d.app.query_one(ReplyView)._figures.text == "interrupted"
        await wait_for(d.pilot, lambda: "half a w" in "".join(view.source for view in d.app.query(Markdown)))


async def test_a_thought_is_kept_with_its_time_and_left_out_of_what_is_sent_on(store):
    async with driving(store=store) as d:
        await d.say("hi")
        await d.reply("<think>what is this about, I wonder</think>A greeting.")
        d.app.context.archive.close()
        id = d.app.chat.id
    assert kept(store)[0][1][1].facts.thought_s > 0
    async with driving(store=store, chat=id) as d:
        await d.settle()
        assert d.app.chat.last_reply().facts.thought_s == kept(store)[0][1][1].facts.thought_s
        assert "thought for" in d.screen()
        await d.say("and?")
        assert d.link.last(Generate).messages[1].content == "A greeting."


def test_a_reply_that_was_kept_has_the_same_pieces():
    reply = StoredMessage(
        "n", "m", "assistant", "a\x1b[31m 你好 b", WHEN, "done", [1, -6, 3, -1], Facts("smol", 1, "end")
    )
    turn = turn_of(reply)
    assert turn.reply.pieces == [("a", "drafted"), ("␛[31m ", "target"), ("你好 ", "drafted"), ("b", "target")]
    assert message_of(turn) == reply


def test_the_figures_of_a_kept_reply_are_those_it_had():
    stats = ev.Stats(9, 30, 24, 21, 8.0, 3.3, 0.9, 0.5, 1.0, 2.0, 0.25, prompt_tokens=7, there_s=1.5)
    facts = Facts("smol", 1, "end", stats=msgspec.to_builtins(stats))
    figures = turn_of(StoredMessage("n", "m", "assistant", "a", WHEN, "done", [1], facts)).reply.figures
    names = ("rounds", "tokens", "drafted", "accepted", "draft_s", "verify_s", "other_s", "there_s")
    assert [getattr(figures, name) for name in names] == [getattr(stats, name) for name in names]
    assert figures.context_tokens == 37


async def test_a_recording_is_not_kept(store):
    async with driving(store=store, demo=Path(__file__).parents[2] / "assets" / "demo.jsonl") as d:
        await d.say("/demo")
        d.app.context.session.player.step()
        await wait_for(d.pilot, lambda: len(d.app.chat.turns) == 2)
        await d.view.current_chat.leave_replay()
        d.app.context.archive.close()
    assert kept(store) == []
