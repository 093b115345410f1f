"""The terminal's window: its title, clipboard and notifications."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable

from specchat.config import AppOptions
from specchat.engine.protocol.events import Finished
from specchat.engine.protocol.text import visible
from specchat.tui.ports import Notify, RunInBackground
from specchat.tui.state.chat import Chat
from specchat.tui.system import desktop
from specchat.tui.text.cells import cut

LONGEST_TITLE = 60
SHORT_S = 3.0
"""A reply that took less time causes no notification."""

SAVE_TITLE, RESTORE_TITLE = "\x1b[22;2t", "\x1b[23;2t"


def title_of(chat: Chat) -> str:
    """The title of the window: a mark while a reply is written, the program, the chat."""
    first = next((turn.content for turn in chat.turns if turn.role == "user"), "")
    about = cut(visible(" ".join((chat.title or first)[:400].split())), LONGEST_TITLE)
    return ("✎ " if chat.running else "") + "specchat" + (f" · {about}" if about else "")


class TerminalWindow:
    """Everything that the app does with the terminal except drawing."""

    def __init__(
        self,
        chat: Chat,
        options: AppOptions,
        *,
        notify: Notify,
        run: RunInBackground,
        write: Callable[[str], None],
        bell: Callable[[], None],
        focused: Callable[[], bool],
    ) -> None:
        """`write` sends a sequence to the terminal."""
        self._chat = chat
        self._options = options
        self._notify, self._run, self._write = notify, run, write
        self._bell, self._focused = bell, focused
        self._title: str | None = None
        self._advised = False
        self._tool = desktop.clipboard_command()

    def update_title(self) -> None:
        """Set the title where the chat has changed it."""
        if not self._options.title or os.environ.get("TERM") in ("linux", "dumb"):
            return
        title = title_of(self._chat)
        if title != self._title:
            self._write(f"{SAVE_TITLE if self._title is None else ''}\x1b]2;{title}\x07")
            self._title = title

    def restore_title(self) -> None:
        """Restore the terminal's title."""
        if self._title is not None and sys.__stdout__ is not None and sys.__stdout__.isatty():
            with contextlib.suppress(OSError):
                sys.__stdout__.write(RESTORE_TITLE)
                sys.__stdout__.flush()

    def reply_ended(self, event: Finished) -> None:
        """A reply has ended: notify the user if another window has the focus."""
        chat = self._chat
        if self._focused() or event.at_s < SHORT_S or self._options.notify == "off" or chat.queued is not None:
            return
        if event.stop == "cancelled":
            return
        if self._options.notify == "desktop":
            self._write(f"\x1b]9;{title_of(chat)}: the reply is complete\x07")
        self._bell()

    def copied(self, text: str, what: str) -> None:
        """Copy a text, which the terminal got already, with the desktop's tool too, and show a remark."""
        if self._tool is None:
            self._notify(f"{what}: {desktop.clipboard_advice(text)}" if not self._advised else f"{what} copied")
            self._advised = True
            return
        self._notify(f"{what} copied")
        self._run(self._hand_over(text, self._tool))

    async def _hand_over(self, text: str, tool: list[str]) -> None:
        if problem := await asyncio.to_thread(desktop.copy_with, text, tool):
            self._notify(problem, "warn")
