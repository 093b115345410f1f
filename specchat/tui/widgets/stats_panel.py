"""The figures of the reply being written, or of the last one."""

from __future__ import annotations

import sys

from specchat.tui.draw.stats_lines import Facts, stats_lines
from specchat.tui.text.cells import ScreenLine
from specchat.tui.text.key_names import hint
from specchat.tui.widgets.painted_lines import PaintedLines


class StatsPanel(PaintedLines):
    """Speeds, acceptance, the time of a round by parts, and whether the settings are lossless."""

    DEFAULT_CSS = """
    StatsPanel {
        height: 6; padding: 0 1; border: round $border; border-title-color: $foreground 80%;
        border-subtitle-color: $quiet-color;
    }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.facts = Facts()
        self._all_wanted = False
        self.entitle(title="speed")

    def show(self, facts: Facts) -> None:
        """Show these facts."""
        self.facts = facts
        self._note_left_out()
        self.repaint()

    def want_all(self, wanted: bool) -> None:
        """Say from now on, or no longer, how many lines there is no room for."""
        self._all_wanted = wanted
        self._note_left_out()

    def on_resize(self) -> None:
        """There is other room."""
        self._note_left_out()

    @property
    def left_out(self) -> int:
        """How many lines there is no room for."""
        width, height = self.size
        return len(stats_lines(self.facts, width, sys.maxsize)) - len(stats_lines(self.facts, width, height))

    def paint(self, width: int, height: int) -> list[ScreenLine]:
        """As many lines as fit; less important ones are left out first."""
        lines = stats_lines(self.facts, width, height)
        return lines or [[("nothing measured yet", "dim")]]

    def _note_left_out(self) -> None:
        left_out = self.left_out if self._all_wanted and self.display else 0
        more = f"{left_out} more"
        self.entitle(subtitle=(hint(self, "stats", f"shows {more}") or more) if left_out else "")
