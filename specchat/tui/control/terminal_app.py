"""The Textual app without the chat: colours, window size, driver, and what is written to the terminal."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any

from textual.driver import Driver
from textual.events import Resize
from textual.filter import LineFilter
from textual.geometry import Size

from specchat.config import AppOptions
from specchat.config.settings_saving import set_app
from specchat.errors import SpecchatError
from specchat.tui.control.key_bindings import key_table, keymap
from specchat.tui.ports import Notify
from specchat.tui.system.terminal import ExitGuard, bounded
from specchat.tui.text.key_names import names_of
from specchat.tui.text.line_filters import AsciiFilter, BrowserGlyphFilter, ControlCodeFilter
from specchat.tui.text.theme import DARK, MONO, OWN
from specchat.tui.textual_patches.compositing import MainScreen
from specchat.tui.textual_patches.fixed_app import FixedApp, take_pastes_whole


class TerminalApp(FixedApp):
    """The base of the app: everything about the terminal, nothing about the chat.

    Args:
        guard: what ends the app when it is told to from outside.
        keys: the user's own keys, by binding.
    """

    def __init__(self, options: AppOptions, guard: ExitGuard | None, keys: Mapping[str, str]) -> None:
        super().__init__()
        self.keys = keymap(keys)
        self.key_table = key_table(self.keys)
        self.guard = guard or ExitGuard()
        self.after_copy: Callable[[str, str], None] = lambda text, what: None  # called with the text and its name
        self._control_codes = ControlCodeFilter()
        self._glyphs = [BrowserGlyphFilter()] if self.driver_class.__name__ == "BrowserDriver" else []
        self._ascii = AsciiFilter(sys.__stderr__.encoding if sys.__stderr__ else "ascii") if options.ascii else None
        self._set_themes(options.theme)
        if not options.animations:
            self.animation_level = "none"

    def get_line_filters(self) -> Sequence[LineFilter]:
        """The filters that every line passes before it is shown."""
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

    def get_default_screen(self) -> MainScreen:
        """The screen of the chat."""
        return MainScreen(id="_default")

    def listen_for_end(self) -> None:
        """From now on a signal or hang-up ends the app in an orderly way."""
        loop = asyncio.get_running_loop()

        def leave(code: int) -> None:
            with suppress(RuntimeError):  # the loop is closed: the app has ended
                loop.call_soon_threadsafe(self.exit, None, code)

        self.guard.listen(leave)

    @property
    def size(self) -> Size:
        """The window's size, within what can be drawn."""
        return bounded(super().size)

    def on_resize(self, event: Resize) -> None:
        """Limit the size of the window: a browser can report any."""
        event.size = event.virtual_size = event.container_size = bounded(event.size)

    def copy_to_clipboard(self, text: str, what: str = "text") -> None:
        """Copy to the terminal's clipboard, and to whatever else `after_copy` knows; nothing does not replace it."""
        if text:
            super().copy_to_clipboard(text)
            self.after_copy(text, what)

    def key_of(self, id: str) -> str:
        """The keys of a binding as people write them; empty where it has none."""
        return names_of(self.key_table.get(id, ()))

    def remember_theme(self, name: str, notify: Notify) -> None:
        """Start with this theme from now on; where the settings cannot be written, say so."""
        try:
            set_app("theme", name)
        except SpecchatError as error:
            notify(f"the theme is not remembered: {error}", "warn")

    def run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it beside the app's own work."""
        self.run_worker(work, exclusive=False, exit_on_error=False)

    def _set_themes(self, wanted: str) -> None:
        """Register our themes and set the wanted one; else greys where NO_COLOR asks for them, else the dark one."""
        for theme in OWN:
            self.register_theme(theme)
        default = MONO if self.no_color else DARK
        self.theme = wanted if wanted in self.available_themes else default.name
        if self.no_color:  # shades of grey are colours too
            self.filter_all_colours()
