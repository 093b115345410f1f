"""The figures of the reply being written, or of the last one."""

from __future__ import annotations

from specchat.tui.draw.stats_lines import Facts, stats_lines
from specchat.tui.text.cells import ScreenLine
from specchat.tui.widgets.painted_lines import PaintedLines


class StatsPanel(PaintedLines):
    """Speeds, acceptance, the time of a round by parts, and whether the settings are lossless."""

    DEFAULT_CSS = """
    StatsPanel {
        height: 6; padding: 0 1; border: round $border; border-title-color: $foreground 80%;
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

    def paint(self, width: int, height: int) -> list[ScreenLine]:
        """As many lines as fit; less important ones are left out first."""
        lines = stats_lines(self._facts, width, height)
        return lines or [[("nothing measured yet", "dim")]]
