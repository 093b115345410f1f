"""One side of a race: its tokens, coloured by who wrote them."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import VerticalScroll

from specchat.engine.protocol.events import RoundDone
from specchat.engine.protocol.text import visible
from specchat.tui.widgets.tinted_text import TintedText


class RaceColumn(VerticalScroll):
    """Appends the rounds that are new; starts again where there are fewer than before."""

    DEFAULT_CSS = """
    RaceColumn {
        width: 1fr; height: 1fr; padding: 0 1; border: round $border; scrollbar-size-vertical: 1;
        border-title-color: $foreground 80%;
    }
    RaceColumn.-running { border: round $primary; border-title-color: $primary; }
    RaceColumn:focus { border-title-style: bold; }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._words = TintedText()
        self._shown = 0
        self._tail = ""
        self._title = ""

    def compose(self) -> ComposeResult:
        """Just the tokens."""
        yield self._words

    def watch_virtual_size(self) -> None:
        """The text has changed its height."""
        self._follow()

    def on_resize(self) -> None:
        """The window has changed its height."""
        self._follow()

    @property
    def text(self) -> str:
        """What it shows."""
        return self._words.text

    def show(self, title: str, rounds: Sequence[RoundDone], tail: str, *, running: bool) -> None:
        """Show these rounds, and the text that came after the last one."""
        if len(rounds) < self._shown or (self._tail and not tail):
            self._words.set([])
            self._shown, self._tail = 0, ""
        fresh = [(visible(piece.text), piece.origin) for round in rounds[self._shown :] for piece in round.pieces]
        self._shown = len(rounds)
        if tail and not self._tail:
            fresh.append((visible(tail), "target"))
            self._tail = tail
        if fresh:
            self._words.add(fresh)
        if title != self._title:
            self.border_title = self._title = title
        self.set_class(running, "-running")

    def _follow(self) -> None:
        """Follow the end of text that overflows; text that fits begins at the top."""
        overflows = self.max_scroll_y > 0
        if overflows != self.is_anchored:
            self.anchor(overflows)
            if not overflows:
                self.scroll_to(y=0, animate=False, immediate=True, force=True)
