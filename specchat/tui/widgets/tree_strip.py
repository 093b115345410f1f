"""The token tree of the last round in one line, where there is no room for a panel."""

from __future__ import annotations

from specchat.engine.protocol.events import RoundDone
from specchat.tui.draw.token_tree import ASCII, UNICODE, draw, picture_of
from specchat.tui.draw.tree_captions import summary_of
from specchat.tui.state.reply_figures import Figures
from specchat.tui.text.cells import ScreenLine, width_of
from specchat.tui.widgets.painted_lines import PaintedLines


class TreeStrip(PaintedLines):
    """The tree in one line, where there is no room for a panel."""

    DEFAULT_CSS = """
    TreeStrip { height: 1; padding: 0 1; }
    """

    def __init__(self, *, ascii_marks: bool = False, id: str | None = None) -> None:
        super().__init__(id=id)
        self._marks = ASCII if ascii_marks else UNICODE
        self._round: RoundDone | None = None
        self._figures: Figures | None = None
        self._upto: int | None = None
        self._pace = ""

    def show(self, round: RoundDone | None, figures: Figures | None, pace: str = "") -> None:
        """Show this round, or nothing."""
        self._round, self._figures, self._pace, self._upto = round, figures, pace, None
        self.repaint()

    def reveal(self, round: RoundDone, upto: int) -> None:
        """Show an animated round: its verdict down to this depth."""
        self._round, self._upto = round, upto
        self.repaint()

    def paint(self, width: int, height: int) -> list[ScreenLine]:
        """The tree at the left, its figures at the right."""
        if self._round is None:
            return []
        summary = self._pace[:2] + summary_of(self._figures)
        room = width - len(summary) - 2
        if room < 12:
            summary, room = "", width
        line = draw(picture_of(self._round, self._marks, self._upto), room, 1, "strip", self._marks).lines[0]
        gap = " " * (width - width_of(line) - len(summary))
        return [[*line, (gap, ""), (summary, "bonus")]]
