"""Saves the chat continuously, and opens stored chats."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from specchat.errors import StoreError
from specchat.store import records
from specchat.store.chats import Chats
from specchat.store.database import open_to_read
from specchat.store.writer import Writer
from specchat.tui.services.terminal_app import TerminalApp
from specchat.tui.state.stored_chat import message_of, message_with_rounds, record_of, turn_of
from specchat.tui.state.turn import ReplyRounds, Turn

PATIENCE_S = 0.2
"""The longest wait for a message to be written before it is answered."""

_T = TypeVar("_T")


class ChatArchive:
    """Saves the chat on the screen to a file, unless it is a recording; without a path nothing is saved."""

    def __init__(self, app: TerminalApp, path: Path | None) -> None:
        self.problem = ""  # one line: why nothing can be saved
        self.deleted: list[records.Summary] = []  # chats that the user deleted since the start, the last one last
        self._app, self._on_screen = app, app.chat
        self.path = path
        self._writer: Writer | None = None
        self._chat = ""  # the id of the chat that the following fields are about
        self._record: records.ChatRecord | None = None  # as it was last written
        self._known: set[str] = set()  # ids of written turns
        self._closed = False
        self._deleted = False  # the user deleted it, but may continue it
        self._unfinished: dict[str, tuple[str, Turn]] = {}  # replies that are still growing, each with its chat

    def start(self) -> None:
        """Open the file for writing; the app is running."""
        if self.path is not None:
            self._writer = Writer(
                self.path,
                remark=lambda text: self._on_app_thread(self._app.note, text, "warn"),
                problem=lambda text: self._on_app_thread(self._set_problem, text),
                anew=lambda: self._on_app_thread(self._put_everything),
            )

    def save(self) -> None:
        """Write what changed since the last call: turns, replies, title, system prompt, branch."""
        chat, writer = self._on_screen, self._writer
        if writer is None or chat.background.replaying:
            return
        if chat.id != self._chat:
            self._put_replies(writer)
            self._chat, self._record, self._known, self._deleted = chat.id, None, set(), False
        fresh = [*takewhile(lambda turn: turn.id not in self._known, reversed(chat.turns))][::-1]
        record = record_of(chat, self._record.updated if self._record and not fresh else records.now())
        if fresh or (self._known and not self._deleted and record != self._record):
            self._record, self._deleted = record, False
            self._known.update(turn.id for turn in fresh)
            messages = [
                message_with_rounds(turn) if turn.reply and turn.reply.stop else message_of(turn) for turn in fresh
            ]
            writer.put(partial(_add, record, messages))
        growing = (turn for turn in chat.turns[-1:] if turn.reply and not turn.reply.stop and turn.id in self._known)
        self._unfinished.update({turn.id: (chat.id, turn) for turn in growing})
        self._put_replies(writer)

    async def wait_until_written(self) -> None:
        if self._writer is not None and not self.problem:
            await asyncio.to_thread(self._writer.settled, PATIENCE_S)

    async def change(self, job: Callable[[Chats], None]) -> None:
        """Run a change of stored chats; raises StoreError where it cannot be written now."""
        writer = self._require_writer()
        writer.put(lambda chats, _: job(chats))
        if not await asyncio.to_thread(writer.settled, 2.0):
            raise StoreError(self.problem or "the chat database is busy; saving is retried")

    async def ask(self, question: Callable[[Chats], _T]) -> _T:
        """Run a query on a thread; raises StoreError where the file cannot be read."""
        writer, path = self._require_writer(), self.path
        assert path is not None, "there is a writer only where there is a path"

        def read() -> _T:
            writer.settled(PATIENCE_S)
            with open_to_read(path) as connection:
                return question(Chats(connection))

        return await asyncio.to_thread(read)

    async def open(self, id: str, leave: Callable[[], None]) -> str:
        """Replace the chat on the screen by a stored one; `leave` is called once the stored one was read.

        Returns the text that was in the prompt when that chat was left.

        Raises:
            StoreError: it cannot be read; the chat on the screen stays.
        """
        record, turns, draft = await self.ask(lambda chats: _read(chats, id))
        leave()
        self._on_screen.open_stored(record, turns)
        self._chat, self._record = record.id, record_of(self._on_screen, record.updated)
        self._known, self._deleted = {turn.id for turn in turns}, False
        return draft

    def keep_draft(self, text: str) -> None:
        """Keep this text with the chat on the screen, or for the next new one; an empty text removes what is kept."""
        if self._writer is not None and not self._on_screen.background.replaying:
            id, _ = self.stored() or (None, "")
            self._writer.put(lambda chats, _: chats.keep_draft(id, text))

    def rename(self, title: str) -> None:
        self._on_screen.title, self._on_screen.renamed = title, True
        self.save()

    def current(self) -> tuple[records.ChatRecord, list[records.StoredMessage]]:
        chat = self._on_screen
        return record_of(chat, records.now()), [message_with_rounds(turn) for turn in chat.branches]

    async def delete(self, chat: records.Summary, deleted: bool = True) -> None:
        """Delete a chat, or restore it. The one on the screen is saved again if it goes on.

        Raises:
            StoreError: it cannot be written now.
        """
        await self.change(lambda chats: chats.delete(chat.id, deleted))
        if deleted:
            self.deleted.append(chat)
        else:
            self.deleted.remove(chat)
        if chat.id == self._chat:
            self._deleted = deleted
            self._record = None

    @property
    def current_is_deleted(self) -> bool:
        """Whether the chat on the screen was deleted, and did not go on since."""
        return self._deleted and self._chat == self._on_screen.id

    def close(self) -> None:
        """Interrupt a running reply, write everything, and set `problem` if that failed."""
        if self._writer is not None:
            self._closed = True
            self._on_screen.end_reply("interrupted")
            self.save()
            complete = self._writer.close()
            self.problem = "" if complete else self._writer.problem or "the disk is too slow"

    def stored(self) -> tuple[str, str] | None:
        """The id and title of the chat on the screen, if it is stored."""
        return (self._record.id, self._record.title) if self._record and self._record.id == self._on_screen.id else None

    def _put_replies(self, writer: Writer) -> None:
        for chat, turn in list(self._unfinished.values()):
            if turn.reply and turn.reply.stop:
                del self._unfinished[turn.id]
                writer.put(partial(_finish, chat, message_of(turn), turn.reply.rounds), of=turn.id)
            else:
                writer.grow(turn.id, partial(_grow, chat, turn))

    def _on_app_thread(self, what: Callable[..., object], *given: object) -> None:
        if not self._closed:
            with suppress(RuntimeError):  # … in this very moment
                self._app.call_later(what, *given)

    def _require_writer(self) -> Writer:
        if self._writer is None:
            raise StoreError("chats are not kept here")
        return self._writer

    def _set_problem(self, problem: str) -> None:
        before, self.problem = self.problem, problem
        if problem:
            self._app.say(f"not being saved: {problem}", "warn")
        elif before:
            self._app.say("being saved again")
        self._on_screen.unsaved = bool(problem)
        self._app.redraw()

    def _put_everything(self) -> None:
        """The file was replaced by an empty one: write the whole chat again."""
        if self._writer is not None and self._record is not None:
            turns = list(self._on_screen.branches)
            self._writer.put(partial(_add, self._record, [message_with_rounds(turn) for turn in turns]))


def _add(record: records.ChatRecord, messages: list[records.StoredMessage], chats: Chats, name: str) -> None:
    chats.save(record)
    for message in messages:
        chats.add(record.id, message, name if message.status == "streaming" else None)


def _finish(chat: str, message: records.StoredMessage, rounds: ReplyRounds, chats: Chats, _: str) -> None:
    """Write a reply that has ended; its rounds are packed here, on the writer's thread."""
    chats.update(chat, replace(message, rounds=rounds.pack()))


def _grow(chat: str, turn: Turn, chats: Chats, name: str) -> None:
    chats.update(chat, message_of(turn), name)


def _read(chats: Chats, id: str) -> tuple[records.ChatRecord, list[Turn], str]:
    record, messages = chats.chat(id)
    return record, [turn_of(message) for message in messages], chats.draft(id)
