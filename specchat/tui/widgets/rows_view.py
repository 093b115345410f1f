"""A widget that shows the rows of a function."""

from __future__ import annotations

from collections.abc import Callable

from specchat.tui.text.cells import Row
from specchat.tui.widgets.painted_rows import PaintedRows


class RowsView(PaintedRows):
    """Calls the function with a width and a height on each `repaint`, and shows its rows."""

    def __init__(self, rows: Callable[[int, int], list[Row]], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._source = rows

    def paint(self, width: int, height: int) -> list[Row]:
        """The function's rows."""
        return self._source(width, height)[:height]
