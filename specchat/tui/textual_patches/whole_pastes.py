"""A parser of terminal input that reads pasted text as text, in large pieces.

Textual's parser reads a paste character by character, which takes a second for a megabyte, and takes what follows an
escape character in it for keys: a pasted log with colours pressed them, Enter included. Most terminals take such
characters out of what they paste, tmux for one does not. It is used with tested versions of Textual only.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from textual._xterm_parser import BRACKETED_PASTE_END, BRACKETED_PASTE_START, XTermParser
from textual.driver import Driver
from textual.events import Paste
from textual.message import Message

from specchat.tui.textual_patches.version import tested


class WholePasteParser(XTermParser):
    """Yields the same events as Textual's parser, however the input is divided; a paste is all that was pasted."""

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
                taken = self._until_paste(data)
                yield from super().feed(data[:taken])
                data = data[taken:]
            else:
                text, ended, data = (self._last + data).partition(BRACKETED_PASTE_END)
                kept = "" if ended else text[1 - len(BRACKETED_PASTE_END) :]
                self._pasted.append(text[: len(text) - len(kept)])
                self._last = kept
                if ended:
                    yield from self._end_paste("".join(self._pasted))

    def _until_paste(self, data: str) -> int:
        """The number of characters up to and including the marker where a paste begins."""
        known = self._last + data
        before, begun, _ = known.partition(BRACKETED_PASTE_START)
        self._pasted = [] if begun else None
        self._last = "" if begun else known[1 - len(BRACKETED_PASTE_START) :]
        return len(before) + len(begun) - (len(known) - len(data))

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
