"""A reply that did not come to its end has figures too, and its chat the context that it takes."""

from __future__ import annotations

from pathlib import Path

import pytest
from driving import driving, wait_for
from fake import hello, ready, rounds_of, started
from test_chat_archive import WHEN, kept

from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Count, Generate
from specchat.store import writer
from specchat.store.chats import Chats
from specchat.store.database import open_to_write
from specchat.store.records import ChatRecord, Facts, StoredMessage


async def test_after_an_interrupted_reply_the_context_is_known(tmp_path: Path):
    store = tmp_path / "chats.db"
    async with driving(store=store) as d:
        await d.say("hi")
        await d.reply(upto=7, finish=False)
        before = d.app.chat.context_tokens
        figures = d.app.chat.figures
        d.app.context.archive.close()
        line, id = d.app.chat.last_reply().line(), d.app.chat.id
    async with driving(store=store, chat=id) as d:
        await d.settle()
        assert d.app.chat.context_tokens == before > 40
        assert f"{before:,} / 8,192" in d.drawn(d.view.status)
        again = d.app.chat.figures
        assert (again.rounds, again.tokens, again.drafted) == (7, figures.tokens, figures.drafted)
        assert again.tokens_per_s == pytest.approx(figures.tokens_per_s)
        assert again.stats.reused_tokens == 12
        assert d.app.chat.last_reply().line() == line


async def test_a_reply_that_was_interrupted_while_its_prompt_was_read_takes_the_prompt(tmp_path: Path):
    store = tmp_path / "chats.db"
    async with driving(store=store) as d:
        await d.say("hi")
        await d.hear(started(d.link.last(Generate).messages))
        d.app.context.archive.close()
        id = d.app.chat.id
    async with driving(store=store, chat=id) as d:
        await d.settle()
        assert d.app.chat.context_tokens == 40


async def test_a_growing_reply_is_kept_with_its_figures_so_far(store, monkeypatch):
    monkeypatch.setattr(writer, "FLUSH_S", 0.05)
    async with driving(store=store) as d:
        await d.say("hi")
        rounds = await d.reply(upto=9, finish=False)
        await wait_for(d.pilot, lambda: (kept(store)[0][1][1].facts.stats or {}).get("rounds") == 9)
        tokens = sum(len(round.pieces) for round in rounds[:9])
        assert kept(store)[0][1][1].facts.stats["tokens"] == tokens


async def test_a_reply_whose_engine_died_keeps_the_figures_of_its_rounds(store):
    async with driving(store=store) as d:
        await d.say("hi")
        await d.reply(upto=4, finish=False)
        await d.hear(ev.Died(-9, ""))
        await wait_for(d.pilot, lambda: kept(store)[0][1][1].status == "done")
        assert kept(store)[0][1][1].facts.stats["rounds"] == 4
        assert len(rounds_of()) > 4


@pytest.mark.parametrize(("words", "counts"), [(3, False), (60, True)])
async def test_a_chat_whose_tokens_are_not_known_is_counted_where_it_may_not_fit(store, words, counts):
    """As are those of replies that an earlier version interrupted."""
    with open_to_write(store)[0] as connection:
        chats = Chats(connection)
        chats.save(ChatRecord("c1", "old", WHEN, WHEN, False, "", "m2", None))
        chats.add("c1", StoredMessage("m1", None, "user", "hi", WHEN))
        said = "word " * words
        chats.add("c1", StoredMessage("m2", "m1", "assistant", said, WHEN, "interrupted", [len(said)], Facts("smol")))
    async with driving(store=store, chat="c1", loaded=False) as d:
        await d.hear(hello(), ready(context_tokens=400))
        await d.until("word")
        await d.say("more")
        asked = [command.messages[-1].content for command in d.link.sent if isinstance(command, Count)]
        assert ("more" in asked) == counts, "the chat without it is counted as it is opened"
