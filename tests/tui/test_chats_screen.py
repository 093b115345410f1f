"""Finding a chat again: search, open, rename, delete, undo, export."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime
from pathlib import Path

import pytest
from driving import Driver, driving, wait_for
from fake import rounds_of, stats_of
from textual.widgets import Input, OptionList

from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Cancel, Generate
from specchat.store.chat_json import read_json
from specchat.store.chats import Chats
from specchat.store.database import open_to_read, open_to_write
from specchat.store.records import ChatRecord, StoredMessage, title_of
from specchat.tui.screens.chats import ChatsScreen
from specchat.tui.text import numbers

CHATS = [
    (
        "rust",
        "Rust or Go for a web server?",
        "Both are fine choices; Go is simpler to learn.",
        "2026-01-30T11:00:00.000Z",
    ),
    ("haiku", "Write a haiku about autumn rain", "Leaves drift in puddles", "2026-01-29T09:30:00.000Z"),
    (
        "sql",
        "Why are there duplicates?",
        "Because the [bold]join[/] multiplies \x1b[31mrows",
        "2025-11-02T10:00:00.000Z",
    ),
]


def fill(store: Path) -> None:
    chats = Chats(open_to_write(store)[0])
    with chats.transaction():
        for id, question, answer, when in CHATS:
            chats.save(ChatRecord(id, title_of(question), when, when, leaf="b"))
            chats.add(id, StoredMessage("a", None, "user", question, when))
            chats.add(id, StoredMessage("b", "a", "assistant", answer, when))
    chats._sql.close()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "chats.db"
    fill(path)
    return path


async def opened(d: Driver, *keys: str) -> ChatsScreen:
    await d.pilot.press("ctrl+o")
    screen = d.app.screen
    assert isinstance(screen, ChatsScreen)
    await settle(d)
    for key in keys:
        await d.pilot.press(key)
        await settle(d)
    return screen


async def settle(d: Driver) -> None:
    await d.pilot.pause()
    await wait_for(d.pilot, lambda: all(worker.is_finished for worker in d.app.workers if worker.name == "_load"))
    await d.pilot.pause()


def shown(screen: ChatsScreen) -> list[str]:
    return [chat.id for chat in screen._found]


def titles(store: Path) -> list[str]:
    with open_to_read(store) as connection:
        return [summary.title for summary in Chats(connection).summaries()]


async def test_the_newest_chat_comes_first_and_enter_opens_it(store):
    async with driving(store=store) as d:
        screen = await opened(d)
        assert shown(screen) == ["rust", "haiku", "sql"]
        assert "Both are fine choices" in d.screen()
        await d.pilot.press("down", "enter")
        await d.settle()
        assert [turn.message().content for turn in d.app.chat.turns] == [CHATS[1][1], CHATS[1][2]]
        assert "Leaves drift in puddles" in d.screen()
        await d.say("another")
        assert [m.content for m in d.link.last(Generate).messages] == [CHATS[1][1], CHATS[1][2], "another"]


async def test_what_is_typed_is_searched_for_in_titles_and_messages(store):
    async with driving(store=store) as d:
        screen = await opened(d, *"pudd")
        assert shown(screen) == ["haiku"]
        assert "Leaves drift in puddles" in d.screen()
        await d.pilot.press("ctrl+u")
        await settle(d)
        assert len(shown(screen)) == 3
        await d.pilot.press("escape")
        await d.say("/chats rust")
        await settle(d)
        assert shown(d.app.screen) == ["rust"]


async def test_nothing_of_what_was_said_is_markup_in_the_list(store):
    async with driving(store=store) as d:
        await opened(d)
        assert "[bold]join[/] multiplies ␛[31mrows" in d.screen()
        assert "\x1b" not in d.screen()


async def test_a_chat_is_renamed_where_it_stands(store):
    async with driving(store=store) as d:
        await opened(d, "tab", "r")
        line = d.app.screen.query_one("#ask", Input)
        assert line.value == "Rust or Go for a web server?"
        line.value = "web servers"
        await d.pilot.press("enter")
        await settle(d)
        assert "web servers" in d.screen()
        assert "web servers" in titles(store)


async def test_a_deleted_chat_can_be_had_back(store):
    async with driving(store=store) as d:
        screen = await opened(d, "tab", "d", "d")
        assert shown(screen) == ["sql"]
        assert "u brings it back" in d.screen()
        await d.pilot.press("u")
        await settle(d)
        await d.pilot.press("u")
        await settle(d)
        assert shown(screen) == ["rust", "haiku", "sql"]
        await d.pilot.press("u")
        assert "nothing was deleted here" in d.screen()


async def test_a_new_chat_takes_the_place_of_one_that_is_deleted_while_it_is_open(store):
    async with driving(store=store, chat="haiku") as d:
        await d.settle()
        await opened(d, "tab", "down", "d", "escape")
        await d.settle()
        assert not d.app.chat.turns
        assert d.view.start_pages.welcome_shown
        assert "Leaves drift" not in d.screen()
        assert "deleted 'Write a haiku about autumn rain' · Ctrl+O Tab u brings it back" in d.drawn(d.view.notice)
        await d.hear(ev.Changed(dict(d.app.chat.engine.settings), ev.Losslessness(True, "")))
        assert len(titles(store)) == 2
        assert d.app.context.archive.stored() is None
        await d.say("go on")
        assert titles(store)[0] == "go on"
        assert [m.content for m in d.link.last(Generate).messages] == ["go on"]


async def test_an_open_chat_that_is_deleted_and_brought_back_at_once_stays(store):
    async with driving(store=store, chat="haiku") as d:
        await d.say("another")
        await d.reply(upto=4, finish=False)
        await opened(d, "tab", "d", "u", "escape")
        await d.settle()
        assert [turn.message().content for turn in d.app.chat.turns][:3] == [CHATS[1][1], CHATS[1][2], "another"]
        assert not any(isinstance(command, Cancel) for command in d.link.sent)
        assert len(titles(store)) == 3


@pytest.mark.parametrize(("keys", "sent"), [(("escape",), False), (("u", "escape"), True)])
async def test_what_waits_is_not_sent_to_a_chat_that_is_deleted(store, keys, sent):
    async with driving(store=store, chat="haiku") as d:
        await d.say("another")
        await d.reply(upto=4, finish=False)
        await d.say("waiting")
        await opened(d, "tab", "d")
        await d.hear(ev.Finished(1, "end", "", stats_of(rounds_of()), 1.0))
        assert len(d.generates()) == 1
        await d.pilot.press(*keys)
        await d.settle()
        assert len(d.generates()) == 1 + sent
        assert len(titles(store)) == 2 + sent
        assert d.view.prompt.text == ("" if sent else "waiting")


async def test_a_chat_deleted_earlier_is_brought_back_by_the_list_opened_again(store):
    async with driving(store=store, chat="haiku") as d:
        await d.settle()
        await opened(d, "tab", "down", "d", "escape")
        screen = await opened(d, "tab", "u")
        assert shown(screen) == ["rust", "haiku", "sql"]
        await d.pilot.press("escape")
        assert not d.app.chat.turns


async def test_deleting_another_chat_leaves_the_one_on_the_screen(store):
    async with driving(store=store, chat="haiku") as d:
        await d.settle()
        await opened(d, "tab", "d", "escape")
        await d.settle()
        assert "Leaves drift in puddles" in d.screen()
        assert len(titles(store)) == 2


async def test_a_chat_is_exported_by_the_ending_of_the_file(store, tmp_path):
    async with driving(store=store) as d:
        await opened(d, "tab", "e")
        line = d.app.screen.query_one("#ask", Input)
        assert line.value == "rust-or-go-for-a-web-server.md"
        line.value = str(tmp_path / "chat.json")
        await d.pilot.press("enter")
        await d.pilot.pause()
        exported = read_json((tmp_path / "chat.json").read_bytes(), "chat.json")
        assert exported.chat.id == "rust"
        await d.pilot.press("e")
        d.app.screen.query_one("#ask", Input).value = str(tmp_path / "chat.json")
        await d.pilot.press("enter")
        await d.until("is there already")


async def test_an_export_to_the_home_of_nobody_is_refused_and_the_screen_stays(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with driving(store=store) as d:
        screen = await opened(d, "tab", "e")
        d.app.screen.query_one("#ask", Input).value = "~nobody-here/x.md"
        await d.pilot.press("enter")
        await d.until("~nobody-here/x.md: No such file or directory")
        assert d.app.screen is screen


async def test_the_screen_names_the_keys_in_force(store):
    async with driving(store=store, keys={"chats.rename": "F6", "chats.undo": "none"}) as d:
        await opened(d, "tab")
        assert "F6 rename · d delete · e export · / search · Esc closes" in d.screen()
        await d.pilot.press("f6")
        assert "Enter does it · Esc leaves it" in d.screen()


async def test_escape_leaves_a_question_before_it_leaves_the_screen(store):
    async with driving(store=store) as d:
        screen = await opened(d, "tab", "r")
        await d.pilot.press("escape")
        assert d.app.screen is screen
        assert isinstance(screen.focused, OptionList)
        await d.pilot.press("escape")
        assert d.app.screen is not screen
        assert d.view.prompt.has_focus


async def test_opening_another_chat_stops_the_reply_that_is_being_written_and_keeps_it(store):
    async with driving(store=store) as d:
        await d.say("hi")
        await d.reply(upto=4, finish=False)
        text, id = d.app.chat.running.text, d.app.chat.running.id
        await opened(d, "down", "enter")
        await d.settle()
        assert Cancel(id) in d.link.sent
        assert d.app.chat.title == CHATS[0][1]
        d.app.context.archive.close()
    with open_to_read(store) as connection:
        chats = Chats(connection)
        kept = [chats.chat(summary.id)[1] for summary in chats.summaries()]
    assert any(message.content == text and message.status == "done" for messages in kept for message in messages)


async def test_starting_without_an_id_asks_which_chat(store):
    async with driving(store=store, chat=None) as d:
        await settle(d)
        assert isinstance(d.app.screen, ChatsScreen)


async def test_an_app_that_keeps_nothing_says_so():
    async with driving() as d:
        await d.pilot.press("ctrl+o")
        assert "not kept here" in d.drawn(d.view.notice)


async def test_a_list_that_cannot_be_read_is_said_in_one_line(store, monkeypatch):
    def summaries(self: Chats, *_: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    async with driving(store=store) as d:
        monkeypatch.setattr(Chats, "summaries", summaries)
        await opened(d)
        await d.until("disk I/O error")


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("2026-01-31T08:05:00.000Z", "08:05"),
        ("2026-01-30T23:59:00.000Z", "yesterday 23:59"),
        ("2026-01-27T12:00:00.000Z", "Tue 12:00"),
        ("2026-01-03T12:00:00.000Z", "3 Jan"),
        ("2025-12-31T12:00:00.000Z", "31 Dec 2025"),
    ],
)
def test_a_moment_is_told_as_people_do(written, told):
    assert numbers.when(written, datetime(2026, 1, 31, 12, tzinfo=UTC)) == told
