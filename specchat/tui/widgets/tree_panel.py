"""The token tree of the last verified round: the picture people come for."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.reactive import reactive

from specchat.engine.events import RoundDone
from specchat.tui.figures import Figures
from specchat.tui.layout_tree import ASCII, UNICODE, Mode, fitting_mode, layout, picture_of
from specchat.tui.layout_tree.strip import strip
from specchat.tui.rows import Row, clip, width_of
from specchat.tui.widgets.painted import Painted

_EARLIER = 8
_LEGEND = (("accepted", "accepted"), ("bonus", "bonus"), ("rejected", "rejected"), ("unreached", "unseen"))


class TreePanel(Painted):
    """One round's tree, and above it how the rounds before it went. Every frame is a real round."""

    DEFAULT_CSS = """
    TreePanel {
        height: 1fr; min-height: 3; padding: 0 1; border: round $border;
        border-title-color: $foreground 80%; border-subtitle-color: $accent;
    }
    """

    mode: reactive[Mode] = reactive("auto")
    """How the tree is drawn; `auto` goes by the room."""

    def __init__(self, *, ascii_marks: bool = False, id: str | None = None) -> None:
        super().__init__(id=id)
        self._marks = ASCII if ascii_marks else UNICODE
        self._rounds: list[RoundDone] = []
        self.border_title = "tree"

    def watch_mode(self) -> None:
        """Draw it the other way."""
        self.repaint()

    def show(self, rounds: Sequence[RoundDone], figures: Figures | None) -> None:
        """Show the last of these rounds, and those before it in brief."""
        self._rounds = list(rounds)
        round = self._rounds[-1] if self._rounds else None
        self.border_title = Content(title_of(round))
        self.border_subtitle = Content(summary_of(figures))
        self.repaint()

    def paint(self, width: int, height: int) -> list[Row]:
        """The tree, and under it what the marks mean where there is room."""
        if not self._rounds:
            return [[("each round's token tree", "dim")]]
        below = self._below(width, height)
        rows = layout(self._rounds[-1], width, height - len(below), self.mode, self._marks)
        return [*rows, *([] for _ in range(height - len(below) - len(rows))), *below]

    def _below(self, width: int, height: int) -> list[Row]:
        """Earlier rounds and the legend; how many depends on the room alone, so that nothing jumps."""
        if height < 10 or fitting_mode(self.mode, width, height) == "strip":
            return []
        count = min(_EARLIER, height // 3) if height >= 15 else 0
        earlier = [self._told(round, width) for round in self._rounds[:-1][-count:]] if count else []
        head: list[Row] = [[("─ earlier rounds " + "─" * max(0, width - 17), "line")]] if count else []
        return [*head, *([] for _ in range(count - len(earlier))), *earlier, [], self._legend(width)]

    def _told(self, round: RoundDone, width: int) -> Row:
        """A round in one quiet line: what it wrote, and who wrote it."""
        spine = picture_of(round, self._marks).spine[1:]
        row: Row = [node.mark(self._marks) for node in spine]
        row.append(("  ", ""))
        roles = {"accepted": "drafted", "bonus": "target"}
        row += [(node.label, roles.get(node.state, "dim")) for node in spine]
        return clip(row, width)

    def _legend(self, width: int) -> Row:
        marks = self._marks
        row: Row = []
        for state, word in _LEGEND:
            entry: Row = [("  " if row else "", ""), (marks.glyph(state), state), (f" {word}", "dim")]
            if width_of(row) + width_of(entry) > width:
                break
            row += entry
        return row


class TreeStrip(Painted):
    """The tree in one line, where there is no room for a panel."""

    DEFAULT_CSS = """
    TreeStrip { height: 1; padding: 0 1; }
    """

    def __init__(self, *, ascii_marks: bool = False, id: str | None = None) -> None:
        super().__init__(id=id)
        self._marks = ASCII if ascii_marks else UNICODE
        self._round: RoundDone | None = None
        self._figures: Figures | None = None

    def show(self, round: RoundDone | None, figures: Figures | None) -> None:
        """Show this round, or nothing."""
        self._round, self._figures = round, figures
        self.repaint()

    def paint(self, width: int, height: int) -> list[Row]:
        """The tree at the left, what it amounts to at the right."""
        if self._round is None:
            return []
        summary = summary_of(self._figures)
        room = width - len(summary) - 2
        if room < 12:
            summary, room = "", width
        row = clip(strip(picture_of(self._round, self._marks), room, 1, self._marks)[0], room)
        gap = " " * (width - width_of(row) - len(summary))
        return [[*row, (gap, ""), (summary, "bonus")]]


def title_of(round: RoundDone | None) -> str:
    """`tree w4 d6 · 18 nodes`, or what plain decoding does."""
    if round is None:
        return "tree"
    drafted = len(round.tree.tokens) - 1
    if drafted <= 0:
        return "plain · 1 token"
    letters = (("w", "width"), ("d", "depth"))
    budget = "".join(f" {letter}{round.budget[name]}" for letter, name in letters if name in round.budget)
    return f"tree{budget} · {drafted} node{'s' if drafted != 1 else ''}"


def summary_of(figures: Figures | None) -> str:
    """`τ 4.2 · 2.7×`."""
    if figures is None or not figures.rounds:
        return ""
    parts = [f"τ {figures.acceptance_length:.1f}"]
    if figures.speedup:
        value, source = figures.speedup
        parts.append(f"{value:.1f}×" + (" est." if source == "est." else ""))
    return " · ".join(parts)
