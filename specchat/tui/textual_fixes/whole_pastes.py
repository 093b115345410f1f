"""What is pasted into the terminal is taken in one piece.

Textual's parser takes it character by character: a second for a megabyte. It only collects them, so whole runs do as
well. That is private to Textual, so it is used with the versions it was tested with, and not otherwise.
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


class WholePastes(XTermParser):
    """Says what Textual's parser says, however the input is cut."""

    def __init__(self, debug: bool = False) -> None:
        super().__init__(debug)
        self._pasting = False
        self._last = ""  # what may be the beginning of a paste's beginning

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
        """How much of this comes before what is pasted; with it, what says that a paste begins."""
        known = self._last + data
        before, begun, _ = known.partition(BRACKETED_PASTE_START)
        self._pasting = bool(begun)
        self._last = "" if begun else known[1 - len(BRACKETED_PASTE_START) :]
        return len(before) + len(begun) - (len(known) - len(data))


def take_pastes_whole(driver: type[Driver]) -> None:
    """Let drivers of this kind read with it."""
    if tested():
        for kind in driver.__mro__:
            module = sys.modules[kind.__module__]
            if getattr(module, "XTermParser", None) is XTermParser:
                module.XTermParser = WholePastes  # type: ignore[attr-defined]
