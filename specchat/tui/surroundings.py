"""The terminal around the app: its title, its clipboard, its attention."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from textual.geometry import Size

from specchat.config import AppOptions
from specchat.engine.events import Finished
from specchat.engine.text import visible
from specchat.tui import clipboard
from specchat.tui.rows import cut

if TYPE_CHECKING:
    from specchat.tui.app import SpecchatApp
    from specchat.tui.chat import Chat

LONGEST_TITLE = 60
SHORT_S = 3.0
"""A reply that took less calls nobody back."""

LARGEST_COLUMNS, LARGEST_ROWS = 2000, 1000
"""Beyond this no window is real, and drawing it would take gigabytes."""

SAVE_TITLE, RESTORE_TITLE = "\x1b[22;2t", "\x1b[23;2t"


def bounded(size: Size) -> Size:
    """The size of a window that can be drawn: at least a cell, at most what a wall of screens has."""
    return Size(max(1, min(LARGEST_COLUMNS, size.width)), max(1, min(LARGEST_ROWS, size.height)))


def bound_environment(environment: MutableMapping[str, str]) -> None:
    """The same for the variables that Textual and Rich read sizes from; what is no size is taken out."""
    for name, most in (("COLUMNS", LARGEST_COLUMNS), ("LINES", LARGEST_ROWS), ("ROWS", LARGEST_ROWS)):
        said = environment.get(name, "")
        if said and not (said.isascii() and said.isdigit() and len(said) < 10 and 0 < int(said) <= most):
            del environment[name]


def title_of(chat: Chat) -> str:
    """What the terminal's title says: a mark while something is being written, the program, the chat."""
    first = next((turn.content for turn in chat.turns if turn.role == "user"), "")
    about = cut(visible(" ".join((chat.title or first)[:400].split())), LONGEST_TITLE)
    return ("✎ " if chat.running else "") + "specchat" + (f" · {about}" if about else "")


class Surroundings:
    """Everything the app does to the terminal beside drawing on it."""

    def __init__(self, app: SpecchatApp, options: AppOptions) -> None:
        self._app = app
        self._options = options
        self._title: str | None = None
        self._advised = False
        self._tool = clipboard.local_tool()

    def look(self) -> None:
        """The chat may have changed: so may the title."""
        if not self._options.title or os.environ.get("TERM") in ("linux", "dumb"):
            return
        title = title_of(self._app.chat)
        if title != self._title:
            self._write(f"{SAVE_TITLE if self._title is None else ''}\x1b]2;{title}\x07")
            self._title = title

    def leave(self) -> None:
        """The terminal's title is what it was."""
        if self._title is not None and sys.__stdout__ is not None and sys.__stdout__.isatty():
            with contextlib.suppress(OSError):
                sys.__stdout__.write(RESTORE_TITLE)
                sys.__stdout__.flush()

    def ended(self, event: Finished) -> None:
        """A reply is complete: call the user back who has gone to another window meanwhile."""
        chat = self._app.chat
        if self._app.app_focus or event.at_s < SHORT_S or self._options.notify == "off" or chat.queued is not None:
            return
        if event.stop == "cancelled":
            return
        if self._options.notify == "desktop":
            self._write(f"\x1b]9;{title_of(chat)}: the reply is complete\x07")
        self._app.bell()

    def copied(self, text: str, what: str) -> None:
        """The text went to the terminal; give it to the desktop as well, and say what happened."""
        app = self._app
        if self._tool is None:
            app.say(f"{what}: {clipboard.advice(text)}" if not self._advised else f"{what} copied")
            self._advised = True
            return
        app.say(f"{what} copied")
        app.run_worker(self._hand_over(text, self._tool), exclusive=False)

    async def _hand_over(self, text: str, tool: list[str]) -> None:
        if problem := await asyncio.to_thread(clipboard.hand_over, text, tool):
            self._app.say(problem, "warn")

    def _write(self, sequence: str) -> None:
        driver = self._app._driver
        if driver is not None and not self._app.is_headless:
            driver.write(sequence)
            driver.flush()
