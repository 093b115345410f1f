"""Chats where the file cannot be written, the disk is full, or the file breaks: said, and nothing is lost."""

from __future__ import annotations

import sqlite3

from driving import Driver, driving, wait_for
from test_chat_archive import kept

from specchat.store import writer
from specchat.store.chats import Chats
from specchat.tui.widgets.messages import NoteView


def notes(d: Driver) -> str:
    return "\n".join(note.text for note in d.app.query(NoteView))


async def test_a_store_that_cannot_be_written_is_said_and_the_chat_goes_on(store):
    store.mkdir()
    async with driving(store=store) as d:
        await wait_for(d.pilot, lambda: "not being saved" in d.drawn(d.view.notice))
        await d.say("hi")
        await d.reply("still here")
        assert "still here" in d.screen()
        assert "not being saved" in d.drawn(d.view.status)
        d.app.context.archive.close()
        assert str(store) in d.app.context.archive.problem


async def test_a_disk_that_is_full_is_said_and_nothing_is_lost_when_there_is_room(store, monkeypatch):
    monkeypatch.setattr(writer, "RETRY_S", 0.05)
    add, full = Chats.add, True

    def adding(self: Chats, *given: object) -> None:
        if full:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        add(self, *given)

    monkeypatch.setattr(Chats, "add", adding)
    async with driving(store=store) as d:
        await d.say("hi")
        await wait_for(d.pilot, lambda: "the disk is full" in d.app.context.archive.problem)
        assert "not being saved" in d.drawn(d.view.notice)
        await d.reply("an answer")
        full = False
        await wait_for(d.pilot, lambda: not d.app.chat.unsaved)
        assert "not being saved" not in d.drawn(d.view.status)
        d.app.context.archive.close()
    assert [message.content for message in kept(store)[0][1]] == ["hi", "an answer"]


async def test_a_file_that_breaks_is_put_aside_and_the_whole_chat_written_again(store, monkeypatch):
    monkeypatch.setattr(writer, "RETRY_S", 0.05)
    async with driving(store=store) as d:
        await d.say("hi " + "long " * 400)
        await d.reply("an answer")
        await wait_for(d.pilot, lambda: kept(store)[0][1][1].status == "done")
        sqlite3.connect(store).execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with store.open("r+b") as file:
            file.write(b"\xaa" * store.stat().st_size)
        await d.say("more")
        await d.reply("another answer")
        await wait_for(d.pilot, lambda: "damaged" in d.drawn(d.view.notice) or any(store.parent.glob("*.damaged-*")))
        await wait_for(d.pilot, lambda: not d.app.chat.unsaved)
        await d.settle()
        assert "and a new one was begun" in notes(d)
        d.app.context.archive.close()
    assert [message.content[:4] for message in kept(store)[0][1]] == ["hi l", "an a", "more", "anot"]


async def test_a_file_that_was_damaged_before_the_start_is_named_on_the_screen_and_stays_so(store):
    store.write_bytes(b"\xaa" * 9000)
    async with driving(store=store) as d:
        await wait_for(d.pilot, lambda: d.app.query(NoteView))
        aside = next(store.parent.glob("chats.db.damaged-*"))
        await d.say("hi")
        await d.reply("an answer")
        assert "not being saved" not in d.drawn(d.view.status)
        assert notes(d) == f"chats.db was damaged; it is kept as {aside}, and a new one was begun"
        await d.until("was damaged; it is kept as")
