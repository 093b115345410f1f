"""Rows from a function, for places that need no widget of their own."""

from __future__ import annotations

from collections.abc import Callable

from specchat.tui.text.cells import Row
from specchat.tui.widgets.painted_rows import PaintedRows


class RowsView(PaintedRows):
    """Shows what the function returns for a width and a height, each time it is told to `repaint`."""

    def __init__(self, rows: Callable[[int, int], list[Row]], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._source = rows

    def paint(self, width: int, height: int) -> list[Row]:
        """The function's rows."""
        return self._source(width, height)[:height]
