"""A widget that shows the lines of a function."""

from __future__ import annotations

from collections.abc import Callable

from specchat.tui.text.cells import ScreenLine
from specchat.tui.widgets.painted_lines import PaintedLines


class LinesView(PaintedLines):
    """Calls the function with a width and a height on each `repaint`, and shows its lines."""

    def __init__(self, lines: Callable[[int, int], list[ScreenLine]], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._source = lines

    def paint(self, width: int, height: int) -> list[ScreenLine]:
        """The function's lines."""
        return self._source(width, height)[:height]
