"""The base of the app: colours, keys, the terminal's window, and the hooks that services call on any app."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from textual.driver import Driver
from textual.events import Resize
from textual.filter import LineFilter
from textual.geometry import Size

from specchat.config import AppOptions
from specchat.config.settings_saving import set_in
from specchat.engine.protocol.events import Finished
from specchat.engine.protocol.text import visible
from specchat.errors import SpecchatError
from specchat.tui.services.key_bindings import key_table, keymap
from specchat.tui.state.chat import Chat
from specchat.tui.system import desktop
from specchat.tui.system.terminal import ExitGuard, bounded
from specchat.tui.text.cells import cut
from specchat.tui.text.key_names import hint, label_of
from specchat.tui.text.line_filters import AsciiFilter, BrowserGlyphFilter, ControlCodeFilter
from specchat.tui.text.theme import DARK, MONO, OWN
from specchat.tui.textual_patches.fixed_app import FixedApp, take_pastes_whole

LONGEST_TITLE = 60
SHORT_S = 3.0
"""A reply that took less time causes no notification."""

SAVE_TITLE, RESTORE_TITLE = "\x1b[22;2t", "\x1b[23;2t"


class TerminalApp(FixedApp):
    """Everything about the terminal. What `say`, `note`, `redraw` and `link_changed` show is up to the app."""

    def __init__(self, chat: Chat, options: AppOptions, guard: ExitGuard | None, keys: Mapping[str, str]) -> None:
        """`guard` ends the app when it is told to from outside; `keys` are the user's own, by binding."""
        super().__init__()
        self.chat, self.options = chat, options
        self.keys = keymap(keys)
        self.key_table = key_table(self.keys)
        self.guard = guard or ExitGuard()
        self._control_codes = ControlCodeFilter()
        self._glyphs = [BrowserGlyphFilter()] if self.driver_class.__name__ == "BrowserDriver" else []
        self._ascii = AsciiFilter(sys.__stderr__.encoding if sys.__stderr__ else "ascii") if options.ascii else None
        self._window_title: str | None = None
        self.clipboard_tool = desktop.clipboard_command()
        self._advised = False
        for theme in OWN:
            self.register_theme(theme)
        default = MONO if self.no_color else DARK
        self.theme = options.theme if options.theme in self.available_themes else default.name
        if self.no_color:  # shades of grey are colours too
            self.filter_all_colours()
        if not options.animations:
            self.animation_level = "none"

    def say(self, text: str, role: str = "dim") -> None:
        """Show one remark until the next."""

    async def note(self, text: str, role: str = "dim") -> None:
        """Add a line to the chat that stays."""

    def redraw(self) -> None:
        """Draw what is known now; cheap where nothing changed."""

    def link_changed(self) -> None:
        """Another engine, or a recording in its place, is listened to now."""

    @contextmanager
    def saying_why(self) -> Iterator[None]:
        """Within it a SpecchatError is shown as a remark."""
        try:
            yield
        except SpecchatError as error:
            self.say(str(error), "warn")

    async def attempt(self, what: Awaitable[object]) -> None:
        with self.saying_why():
            await what

    def get_line_filters(self) -> Sequence[LineFilter]:
        filters = [*super().get_line_filters(), self._control_codes, *self._glyphs]
        return filters if self._ascii is None else [*filters, self._ascii]

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Colours of ours that other themes do not define."""
        return {"quiet-color": "#8390a3", "line-color": "#5b687c"}

    def get_driver_class(self) -> type[Driver]:
        """Textual's choice; in a browser, a driver that ends the app with the page or the server."""
        driver = super().get_driver_class()
        take_pastes_whole(driver)
        if driver.__name__ == "WebDriver":
            from specchat.tui.system.browser import BrowserDriver

            return BrowserDriver
        return driver

    def listen_for_end(self) -> None:
        """From now on a signal or hang-up ends the app in an orderly way."""
        loop = asyncio.get_running_loop()

        def leave(code: int) -> None:
            with suppress(RuntimeError):  # the loop is closed: the app has ended
                loop.call_soon_threadsafe(self.exit, None, code)

        self.guard.listen(leave)

    @property
    def size(self) -> Size:
        return bounded(super().size)

    def on_resize(self, event: Resize) -> None:
        """Limit the size of the window: a browser can report any."""
        event.size = event.virtual_size = event.container_size = bounded(event.size)

    def copy_to_clipboard(self, text: str, what: str = "text") -> None:
        """Copy with the terminal, and with the desktop's tool where there is one; an empty text replaces nothing."""
        if not text:
            return
        super().copy_to_clipboard(text)
        if self.clipboard_tool is not None:
            self.say(f"{what} copied")
            self.run_in_background(self._hand_over(text, self.clipboard_tool))
        else:
            self.say(f"{what} copied" if self._advised else f"{what}: {desktop.clipboard_advice(text)}")
            self._advised = True

    async def _hand_over(self, text: str, tool: list[str]) -> None:
        if problem := await asyncio.to_thread(desktop.copy_with, text, tool):
            self.say(problem, "warn")

    def key_of(self, id: str) -> str:
        return label_of(self, id)

    def key_hint(self, id: str, does: str, before: str = "") -> str:
        return hint(self, id, does, before)

    @property
    def busy_reason(self) -> str:
        return "a reply is being written" + self.key_hint("stop", "stops it", "; ")

    @property
    def recording_reason(self) -> str:
        return "a recording is being played" + self.key_hint("stop", "leaves it", "; ")

    def remember_theme(self, name: str) -> None:
        """Start with this theme from now on; where the settings cannot be written, say so."""
        try:
            set_in("app", "theme", name)
        except SpecchatError as error:
            self.say(f"the theme is not remembered: {error}", "warn")

    def update_window_title(self) -> None:
        if not self.options.title or os.environ.get("TERM") in ("linux", "dumb"):
            return
        title = title_of(self.chat)
        if title != self._window_title:
            saves = SAVE_TITLE if self._window_title is None else ""
            self.write_to_terminal(f"{saves}\x1b]2;{title}\x07")
            self._window_title = title

    def restore_window_title(self) -> None:
        if self._window_title is not None and sys.__stdout__ is not None and sys.__stdout__.isatty():
            with suppress(OSError):
                sys.__stdout__.write(RESTORE_TITLE)
                sys.__stdout__.flush()

    def call_user_back(self, event: Finished) -> None:
        """A reply has ended: ring the bell, or more, if another window has the focus."""
        brief = event.at_s < SHORT_S or event.stop == "cancelled"
        if self.app_focus or brief or self.options.notify == "off" or self.chat.queued is not None:
            return
        if self.options.notify == "desktop":
            self.write_to_terminal(f"\x1b]9;{title_of(self.chat)}: the reply is complete\x07")
        self.bell()

    def run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        self.run_worker(work, exclusive=False, exit_on_error=False)


def title_of(chat: Chat) -> str:
    """The title of the window: a mark while a reply is written, the program, the chat."""
    first = next((turn.content for turn in chat.turns if turn.role == "user"), "")
    about = cut(visible(" ".join((chat.title or first)[:400].split())), LONGEST_TITLE)
    return ("✎ " if chat.running else "") + "specchat" + (f" · {about}" if about else "")
