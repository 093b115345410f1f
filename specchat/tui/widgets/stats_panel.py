"""The figures of the reply being written, or of the last one."""

from __future__ import annotations

from specchat.tui.draw.stats_rows import Facts, stats_rows
from specchat.tui.text.cells import Row
from specchat.tui.widgets.painted_rows import PaintedRows


class StatsPanel(PaintedRows):
    """Speeds, acceptance, where a round's time goes, and whether the text is exactly the target's."""

    DEFAULT_CSS = """
    StatsPanel {
        height: 8; padding: 0 1; border: round $border; border-title-color: $foreground 80%;
    }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._facts = Facts()
        self.entitle(title="speed")

    def show(self, facts: Facts) -> None:
        """Show these facts."""
        self._facts = facts
        self.repaint()

    def paint(self, width: int, height: int) -> list[Row]:
        """As many rows as there is room for, the most telling ones first to stay."""
        rows = stats_rows(self._facts, width, height)
        return rows or [[("nothing measured yet", "dim")]]
