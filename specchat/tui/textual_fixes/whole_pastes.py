"""A parser of terminal input that reads pasted text in large pieces.

Textual's parser reads a paste character by character, which takes a second for a megabyte. Since it only collects the
characters, whole runs can be passed. It uses private attributes, so it is used with tested versions only.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from textual._xterm_parser import BRACKETED_PASTE_START, XTermParser
from textual.driver import Driver
from textual.events import Paste
from textual.message import Message

from specchat.tui.textual_fixes.version import tested

_ESCAPE = "\x1b"


class WholePasteParser(XTermParser):
    """Yields the same events as Textual's parser, however the input is divided."""

    def __init__(self, debug: bool = False) -> None:
        super().__init__(debug)
        self._pasting = False
        self._last = ""  # input that may be the beginning of a paste marker

    def feed(self, data: str) -> Iterable[Message]:
        """The events of some more input; its end where there is none."""
        if not data:
            yield from super().feed(data)
        while data:
            if not self._pasting:
                taken = self._until_paste(data)
                yield from super().feed(data[:taken])
            elif self._awaiting.timeout is None and data[0] != _ESCAPE:
                taken = len(data.partition(_ESCAPE)[0])
                self._awaiting = self._gen.send(data[:taken])
            else:
                taken = 1
                for event in super().feed(data[0]):
                    self._pasting = self._pasting and not isinstance(event, Paste)
                    yield event
            data = data[taken:]

    def _until_paste(self, data: str) -> int:
        """The number of characters up to and including the marker where a paste begins."""
        known = self._last + data
        before, begun, _ = known.partition(BRACKETED_PASTE_START)
        self._pasting = bool(begun)
        self._last = "" if begun else known[1 - len(BRACKETED_PASTE_START) :]
        return len(before) + len(begun) - (len(known) - len(data))


def take_pastes_whole(driver: type[Driver]) -> None:
    """Make drivers of this class use this parser."""
    if tested():
        for kind in driver.__mro__:
            module = sys.modules[kind.__module__]
            if getattr(module, "XTermParser", None) is XTermParser:
                module.XTermParser = WholePasteParser  # type: ignore[attr-defined]
