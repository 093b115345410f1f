"""The small panels of the chat's screen: the tree in one line, the end of the reply, the figures."""

from __future__ import annotations

import sys

from specchat.engine.protocol.events import RoundDone
from specchat.tui.state.reply_figures import Figures
from specchat.tui.state.stats_lines import StatsFacts, stats_lines
from specchat.tui.text.cells import Run, ScreenLine, last_wrapped_lines, width_of
from specchat.tui.text.key_names import hint
from specchat.tui.tree import UNICODE, Marks, draw, picture_of
from specchat.tui.tree.panel_lines import summary_of
from specchat.tui.widgets.painted_lines import PaintedChat, PaintedLines


class TreeStrip(PaintedLines):
    """The tree in one line, where there is no room for a panel."""

    DEFAULT_CSS = """
    TreeStrip { height: 1; padding: 0 1; }
    """

    def __init__(self, marks: Marks = UNICODE, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._marks = marks
        self._round: RoundDone | None = None
        self._figures: Figures | None = None
        self._upto: int | None = None
        self._pace = ""

    def show(self, round: RoundDone | None, figures: Figures | None, pace: str = "") -> None:
        self._round, self._figures, self._pace, self._upto = round, figures, pace, None
        self.repaint()

    def reveal(self, round: RoundDone, upto: int) -> None:
        """Show an animated round: its verdict down to this depth."""
        self._round, self._upto = round, upto
        self.repaint()

    def paint(self, width: int, height: int) -> list[ScreenLine]:
        if self._round is None:
            return []
        summary = self._pace[:2] + summary_of(self._figures)
        room = width - len(summary) - 2
        if room < 12:
            summary, room = "", width
        line = draw(picture_of(self._round, self._marks, self._upto), room, 1, "strip", self._marks).lines[0]
        gap = " " * (width - width_of(line) - len(summary))
        return [[*line, (gap, ""), (summary, "bonus")]]


class Subtitle(PaintedChat):
    """Shows the last lines of the newest reply, tinted by who wrote them, and the guesses behind it."""

    DEFAULT_CSS = """
    Subtitle { height: 3; padding: 0 2; display: none; }
    """

    _preview: tuple[Run, ...] = ()

    def set_preview(self, runs: ScreenLine) -> None:
        """Show these runs behind the text; they are not part of it."""
        if tuple(runs) != self._preview:
            self._preview = tuple(runs)
            self.repaint()

    def paint(self, width: int, height: int) -> list[ScreenLine]:
        reply = self._chat.newest_reply
        pieces = [] if reply is None else reply.pieces
        return last_wrapped_lines([*pieces, *self._preview], width, height)


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
        self.facts = StatsFacts()
        self._all_wanted = False
        self.entitle(title="speed")

    def show(self, facts: StatsFacts) -> None:
        self.facts = facts
        self._note_left_out()
        self.repaint()

    def want_all(self, wanted: bool) -> None:
        """Say from now on, or no longer, how many lines there is no room for."""
        self._all_wanted = wanted
        self._note_left_out()

    def on_resize(self) -> None:
        self._note_left_out()

    @property
    def left_out(self) -> int:
        width, height = self.size
        return len(stats_lines(self.facts, width, sys.maxsize)) - len(stats_lines(self.facts, width, height))

    def paint(self, width: int, height: int) -> list[ScreenLine]:
        return stats_lines(self.facts, width, height) or [[("nothing measured yet", "dim")]]

    def _note_left_out(self) -> None:
        left_out = self.left_out if self._all_wanted and self.display else 0
        more = f"{left_out} more"
        self.entitle(subtitle=(hint(self, "stats", f"shows {more}") or more) if left_out else "")
