"""Keeps every chat as it goes, and opens those that were kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from specchat.errors import StoreError
from specchat.store import records
from specchat.store.chats import Chats
from specchat.store.database import open_to_read
from specchat.store.writer import Writer
from specchat.tui.ports import CallLater, Notify, Redraw
from specchat.tui.state.session import Chat
from specchat.tui.state.stored_chat import message_of, row_of, turn_of
from specchat.tui.state.turn import Turn

PATIENCE_S = 0.2
"""How long a question waits to be on the disk before it is answered; a slow disk keeps nobody longer."""

_T = TypeVar("_T")


class ChatArchive:
    """The chat on the screen and the file it is in; without a path (tests, recordings) nothing is kept."""

    def __init__(
        self,
        chat: Chat,
        path: Path | None,
        *,
        notify: Notify,
        redraw: Redraw,
        call_later: CallLater,
        listening: Callable[[], bool],
    ) -> None:
        """`listening` says whether what happens in the chat is the user's own: a recording is not kept."""
        self.problem = ""  # one line: why nothing is being saved
        self._on_screen = chat
        self._notify, self._redraw, self._call_later, self._listening = notify, redraw, call_later, listening
        self._path = path
        self._writer: Writer | None = None
        self._chat = ""  # the chat that the rest is about
        self._row: records.Chat | None = None  # as it was put last
        self._known: set[str] = set()  # turns that were put
        self._left = False
        self._deleted = False  # by the user, who may still go on with it
        self._open: dict[str, tuple[str, Turn]] = {}  # replies being written, each with its chat

    @property
    def keeps(self) -> bool:
        """Whether there is a file at all."""
        return self._path is not None

    def start(self) -> None:
        """Begin to listen to the chat; the app is running."""
        if self._path is not None:
            self._writer = Writer(
                self._path,
                remark=lambda text: self._later(self._notify, text, "warn"),
                problem=lambda text: self._later(self._problem_is, text),
                anew=lambda: self._later(self._keep_anew),
            )

    def keep(self) -> None:
        """Put what is new since the last time: turns, what replies have become, title, system prompt, branch."""
        chat, writer = self._on_screen, self._writer
        if writer is None or not self._listening():
            return
        if chat.id != self._chat:
            self._settle(writer)
            self._chat, self._row, self._known, self._deleted = chat.id, None, set(), False
        fresh = self._fresh()
        row = row_of(chat, self._row.updated if self._row and not fresh else records.now())
        if fresh or (self._known and not self._deleted and row != self._row):
            self._row, self._deleted = row, False
            self._known.update(turn.id for turn in fresh)
            self._open.update({turn.id: (chat.id, turn) for turn in fresh if turn.reply and not turn.reply.stop})
            writer.put(partial(_add, row, [message_of(turn) for turn in fresh]))
        self._settle(writer)

    async def written(self) -> None:
        """Wait until what was put is on the disk, but not long."""
        if self._writer is not None and not self.problem:
            await asyncio.to_thread(self._writer.settled, PATIENCE_S)

    async def change(self, job: Callable[[Chats], None]) -> None:
        """Change something about chats; raises StoreError where it cannot be written now."""
        writer = self._writing()
        writer.put(lambda chats, _: job(chats))
        if not await asyncio.to_thread(writer.settled, 2.0):
            raise StoreError(self.problem or "the chats are busy; it is done as soon as they are free")

    async def ask(self, question: Callable[[Chats], _T]) -> _T:
        """Ask the file something, off the event loop; raises StoreError where it cannot be read."""
        writer, path = self._writing(), self._path
        assert path is not None, "there is a writer only where there is a path"

        def read() -> _T:
            writer.settled(PATIENCE_S)
            with open_to_read(path) as connection:
                return question(Chats(connection))

        return await asyncio.to_thread(read)

    async def open(self, id: str, leave: Callable[[], None]) -> None:
        """Put a kept chat in place of the one on the screen, which `leave` lets go of once the new one was read.

        Raises:
            StoreError: it cannot be read; the chat on the screen stays.
        """
        row, turns = await self.ask(lambda chats: _read(chats, id))
        leave()
        self._on_screen.adopt(row, turns)
        self._chat, self._row = row.id, row_of(self._on_screen, row.updated)
        self._known, self._deleted = {turn.id for turn in turns}, False

    def rename(self, title: str) -> None:
        """Give the chat on the screen a name of the user's own."""
        self._on_screen.title, self._on_screen.renamed = title, True
        self.keep()

    def current(self) -> tuple[records.Chat, list[records.Message]]:
        """The chat on the screen as it would be kept, all branches of it."""
        chat = self._on_screen
        return row_of(chat, records.now()), [message_of(turn) for turn in chat.branches]

    def delete(self, id: str, deleted: bool = True) -> None:
        """A chat was put away, or taken back: if it is on the screen, it is kept again once it goes on."""
        if id == self._chat:
            self._deleted = deleted
            self._row = None

    def close(self) -> None:
        """Write what is left. A reply that is still being written ends here; what is not on the disk is a `problem`."""
        if self._writer is not None:
            self._left = True
            self._on_screen.leave()
            self.keep()
            complete = self._writer.close()
            self.problem = "" if complete else self._writer.problem or "the disk is too slow"

    def kept(self) -> tuple[str, str] | None:
        """Id and title of the chat on the screen, if it can be opened again."""
        return (self._row.id, self._row.title) if self._row and self._row.id == self._on_screen.id else None

    def _fresh(self) -> list[Turn]:
        """Turns of the path that were not put yet: they are always its last ones."""
        turns = self._on_screen.turns
        first = len(turns)
        while first and turns[first - 1].id not in self._known:
            first -= 1
        return list(turns[first:])

    def _settle(self, writer: Writer) -> None:
        """Put what replies have become."""
        for chat, turn in list(self._open.values()):
            if turn.reply and turn.reply.stop:
                del self._open[turn.id]
                writer.put(partial(_update, chat, message_of(turn)), of=turn.id)
            else:
                writer.grow(turn.id, partial(_grow, chat, turn))

    def _later(self, what: Callable[..., object], *given: object) -> None:
        """Do it on the app's own thread, unless the user has left."""
        if not self._left:
            with suppress(RuntimeError):  # … in this very moment
                self._call_later(what, *given)

    def _writing(self) -> Writer:
        if self._writer is None:
            raise StoreError("chats are not kept here")
        return self._writer

    def _problem_is(self, problem: str) -> None:
        before, self.problem = self.problem, problem
        if problem:
            self._notify(f"not being saved: {problem}", "warn")
        elif before:
            self._notify("being saved again")
        self._on_screen.unsaved = bool(problem)
        self._redraw()

    def _keep_anew(self) -> None:
        """The file was replaced by an empty one: put the whole chat once more."""
        if self._writer is not None and self._row is not None:
            turns = list(self._on_screen.branches)
            self._writer.put(partial(_add, self._row, [message_of(turn) for turn in turns]))


def _add(row: records.Chat, messages: list[records.Message], chats: Chats, name: str) -> None:
    chats.save(row)
    for message in messages:
        chats.add(row.id, message, name if message.status == "streaming" else None)


def _update(chat: str, message: records.Message, chats: Chats, _: str) -> None:
    chats.update(chat, message)


def _grow(chat: str, turn: Turn, chats: Chats, _: str) -> None:
    chats.update(chat, message_of(turn))


def _read(chats: Chats, id: str) -> tuple[records.Chat, list[Turn]]:
    row, messages = chats.chat(id)
    return row, [turn_of(message) for message in messages]
