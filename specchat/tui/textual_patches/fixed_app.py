"""Textual's app, text area and input with fixes.

Batches are drawn when they end, the app can write to the terminal and ends quietly; the text area survives undo; pastes
are read whole.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterable

from textual._xterm_parser import BRACKETED_PASTE_END, BRACKETED_PASTE_START, XTermParser
from textual.app import App
from textual.document._document import EditResult, Location
from textual.document._edit import Edit
from textual.driver import Driver
from textual.events import Paste
from textual.filter import Monochrome, NoColor
from textual.keys import KEY_NAME_REPLACEMENTS, _character_to_key
from textual.message import Message
from textual.widgets import TextArea
from textual.widgets.text_area import Selection

from specchat.tui.textual_patches import tested


class FixedApp(App[None]):
    """The base of the app; uses private attributes of Textual."""

    @property
    def can_suspend(self) -> bool:
        """Whether the app can go to the background here."""
        driver = self._used_driver
        return driver is not None and driver.can_suspend

    @property
    def crash(self) -> Exception | None:
        """The first error that nothing handled, which ended the app; None where this version of Textual hides it."""
        error = self._exception if tested() else getattr(self, "_exception", None)
        return error if isinstance(error, Exception) else None

    def write_to_terminal(self, sequence: str) -> None:
        """Send a sequence that draws nothing."""
        driver = self._used_driver
        if driver is not None and not self.is_headless:
            driver.write(sequence)
            driver.flush()

    @property
    def _used_driver(self) -> Driver | None:
        """The terminal's driver; None where this version of Textual does not have it in the known place."""
        return self._driver if tested() else getattr(self, "_driver", None)

    def filter_all_colours(self) -> None:
        """Draw without colours, where Textual would draw shades of grey."""
        if tested():
            self._filters = [NoColor() if isinstance(one, Monochrome) else one for one in self._filters]

    def refresh_css(self, animate: bool = True) -> None:
        """Take the colours of the theme; before there is a screen, Textual would parse all style sheets twice."""
        if self.screen_stack or not tested():
            super().refresh_css(animate)
        else:
            self.stylesheet.set_variables(self.get_css_variables())

    def _fatal_error(self) -> None:
        """End the app; whoever started it reports the `crash`. Untested versions print it too, with all variables."""
        if tested():
            self._close_messages_no_wait()
        else:
            super()._fatal_error()

    def _end_batch(self) -> None:
        """Draw what changed within a batch when it ends: Textual 8.2.8 leaves it until something else happens."""
        super()._end_batch()
        if tested() and not self._batch_count:
            for screen in self.screen_stack:
                screen.check_idle()


__all__ = ["Edit", "EditResult", "FixedTextArea", "Location"]


class FixedTextArea(TextArea):
    """A text area that survives to undo and redo what made it scroll."""

    def within(self, location: Location) -> Location:
        """The location, or the end of the text if that comes first."""
        return min(location, self.document.end)

    def _refresh_size(self) -> None:
        """Undo and redo of Textual 8.2.8 call this before they move the cursor, which may be on a removed line."""
        if tested():
            self.selection = Selection(*map(self.within, self.selection))
        super()._refresh_size()


def key_of_character(character: str) -> str:
    """`full_stop` for `.`; letters and digits are their own names."""
    if tested():
        return _character_to_key(character)
    if character.isalnum():
        return character
    name = unicodedata.name(character, character).lower().replace("-", "_").replace(" ", "_")
    return KEY_NAME_REPLACEMENTS.get(name, name)


class WholePasteParser(XTermParser):
    """Reads pasted text as text, in large pieces, however the input is divided; other events are Textual's.

    Textual's parser reads a paste character by character, which takes a second for a megabyte, and takes what follows
    an escape character in it for keys: a pasted log with colours pressed them, Enter included. Most terminals take such
    characters out of what they paste, tmux for one does not.
    """

    def __init__(self, debug: bool = False) -> None:
        super().__init__(debug)
        self._pasted: list[str] | None = None  # pieces of the paste that is being read
        self._last = ""  # input that may be the beginning of a paste marker

    def feed(self, data: str) -> Iterable[Message]:
        """The events of some more input; its end where there is none."""
        if not data:
            yield from super().feed(data)
        while data:
            if self._pasted is None:
                known = self._last + data
                before, begun, _ = known.partition(BRACKETED_PASTE_START)
                self._pasted = [] if begun else None
                self._last = "" if begun else known[1 - len(BRACKETED_PASTE_START) :]
                taken = len(before) + len(begun) - (len(known) - len(data))
                yield from super().feed(data[:taken])
                data = data[taken:]
            else:
                text, ended, data = (self._last + data).partition(BRACKETED_PASTE_END)
                kept = "" if ended else text[1 - len(BRACKETED_PASTE_END) :]
                self._pasted.append(text[: len(text) - len(kept)])
                self._last = kept
                if ended:
                    yield from self._end_paste("".join(self._pasted))

    def _end_paste(self, text: str) -> Iterable[Message]:
        """Textual's parser has seen the two markers alone; the text between them is put into its event."""
        self._pasted = None
        for event in super().feed(BRACKETED_PASTE_END):
            yield Paste(text.replace("\x00", "")) if isinstance(event, Paste) else event


def take_pastes_whole(driver: type[Driver]) -> None:
    """Make drivers of this class use this parser."""
    if tested():
        for kind in driver.__mro__:
            module = sys.modules[kind.__module__]
            if getattr(module, "XTermParser", None) is XTermParser:
                module.XTermParser = WholePasteParser  # type: ignore[attr-defined]
