"""Text that grows: wrapped line by line, each run in its own style, only the last line wrapped again."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region, Size
from textual.selection import Selection
from textual.strip import Strip

from specchat.tui.text.cells import Row
from specchat.tui.text.wrap import wrap
from specchat.tui.widgets.growing_rows import Growing
from specchat.tui.widgets.text_roles import Roles

_TAB = "    "


class TintedText(Roles, Growing):
    """Runs of (text, role), never parsed as markup. Text must have gone through `visible`."""

    DEFAULT_CSS = """
    TintedText { width: 1fr; height: auto; }
    """

    def __init__(
        self, runs: Iterable[tuple[str, str]] = (), *, id: str | None = None, classes: str | None = None
    ) -> None:
        super().__init__(id=id, classes=classes)
        self.step = 1
        """The height is a multiple of this: whoever grows fast should not ask for a layout at every row."""
        self._lines: list[Row] = [[]]
        self._ghost: Row = []
        self._ghost_rows: list[tuple[int, int, int]] = []  # the last row with its ghost behind it
        self._within = False
        self._starts: list[list[int]] = [[]]  # where each run of each line begins
        self._texts = [""]
        self._rows: list[tuple[int, int, int]] = [(0, 0, 0)]  # (line, start, end)
        self._wrapped_for = 80
        self.add(runs)

    @property
    def text(self) -> str:
        """All of it, without styles."""
        return "\n".join(self._texts)

    def add(self, runs: Iterable[tuple[str, str]]) -> None:
        """Write at the end, where no ghost is any more; only from the last row's beginning on is wrapped and drawn."""
        before = self._height()
        line, start, _ = self._rows.pop()
        first = len(self._rows)
        self._give_up_ghost()
        for text, role in runs:
            head, *more = text.replace("\t", _TAB).split("\n")
            self._append(head, role)
            for part in more:
                self._open_line()
                self._append(part, role)
        self._wrap_from(line, start)
        self._draw_from(first, before)

    def set_preview(self, runs: Iterable[tuple[str, str]], *, within: bool = False) -> None:
        """Let these runs follow the text until more is written. They are no part of it: not selected, not copied.

        They wrap as the text would; or those that fit stay `within` the last row, and nothing moves because of them.
        """
        ghost = [(text, role) for text, role in runs if text]
        if (ghost, within) == (self._ghost, self._within):
            return
        before = self._height()
        self._ghost, self._within = ghost, within
        self._wrap_ghost()
        self._draw_from(len(self._rows) - 1, before)

    def drop_lines(self, count: int) -> None:
        """Forget the first lines: they are shown elsewhere now."""
        self._give_up_ghost()
        if count >= len(self._lines):
            self._begin()
        else:
            del self._lines[:count], self._starts[:count], self._texts[:count]
            self._rows = [(line - count, start, end) for line, start, end in self._rows if line >= count]
        self.refresh(layout=True)

    def set(self, runs: Iterable[tuple[str, str]]) -> None:
        """Write from the beginning."""
        self._begin()
        self.add(runs)
        self.refresh(layout=True)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Rows at this width; a line that only just began is not shown yet."""
        self._fit(width)
        return self._height()

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """Selected text without the breaks that wrapping made."""
        return selection.extract(self.text), "\n"

    def render_line(self, y: int) -> Strip:
        """One wrapped row."""
        width = self.size.width
        self._fit(width)
        last = len(self._rows) - 1
        rows, at = (self._ghost_rows, y - last) if self._ghost_rows and y >= last else (self._rows, y)
        if at >= len(rows):
            return Strip.blank(width, self.rich_style)
        line, start, end = rows[at]
        strip = Strip(self._segments(line, start, end)).apply_offsets(start, line)
        return strip.adjust_cell_length(width, self.rich_style)

    def _height(self) -> int:
        shown = len(self._rows) - 1 + (len(self._ghost_rows) or not self._begins())
        return -(-shown // self.step) * self.step

    def _begins(self) -> bool:
        """Whether the last line only just began."""
        return len(self._rows) > 1 and not self._texts[-1]

    def _draw_from(self, first: int, before: int) -> None:
        """Draw the rows from this one on; lay out only if the height is another than before."""
        height = self._height()
        changed = Region(0, first, self.size.width, max(before, height, len(self._rows)) - first)
        self.refresh(changed, layout=height != before)

    def _wrap_ghost(self) -> None:
        """The last row and the ghost behind it, in as many rows as they take or may take."""
        line, begin, _ = self._rows[-1]
        text = self._texts[line][begin:] + "".join(text for text, _ in self._ghost)
        rows = wrap(text, self._wrapped_for) if self._ghost else []
        if self._within:
            rows = [] if self._begins() else rows[:1]
        self._ghost_rows = [(line, begin + start, begin + end) for start, end in rows]

    def _give_up_ghost(self) -> None:
        self._ghost, self._ghost_rows = [], []

    def _begin(self) -> None:
        """No text: one empty line, one empty row."""
        self._lines, self._starts, self._texts, self._rows = [[]], [[]], [""], [(0, 0, 0)]

    def _open_line(self) -> None:
        self._lines.append([])
        self._starts.append([])
        self._texts.append("")

    def _append(self, text: str, role: str) -> None:
        if not text:
            return
        line = self._lines[-1]
        if line and line[-1][1] == role:
            line[-1] = (line[-1][0] + text, role)
        else:
            line.append((text, role))
            self._starts[-1].append(len(self._texts[-1]))
        self._texts[-1] += text

    def _fit(self, width: int) -> None:
        if width != self._wrapped_for:
            self._wrapped_for = width
            self._rows = []
            self._wrap_from(0, 0)
            self._wrap_ghost()

    def _wrap_from(self, line: int, begin: int) -> None:
        """Add the rows from here on. A row's beginning never moves when text comes after it."""
        for index in range(line, len(self._lines)):
            text = self._texts[index][begin:]
            self._rows += [(index, begin + start, begin + end) for start, end in wrap(text, self._wrapped_for)]
            begin = 0

    def _segments(self, line: int, start: int, end: int) -> list[Segment]:
        marked = self._marked(line)
        segments: list[Segment] = []
        starts = self._starts[line]
        for index in range(max(0, bisect_right(starts, start) - 1), len(starts)):
            at = starts[index]
            if at >= end:
                break
            text, role = self._lines[line][index]
            left, right = max(start, at), min(end, at + len(text))
            segments += self._cut(text[left - at : right - at], left, self.style_of(role), marked)
        return [*segments, *self._ghostly(start, end)] if self._ghost and line == len(self._lines) - 1 else segments

    def _ghostly(self, start: int, end: int) -> list[Segment]:
        """What of the ghost stands in a row of the last line."""
        segments: list[Segment] = []
        at = len(self._texts[-1])
        for text, role in self._ghost:
            left, right = max(start, at), min(end, at + len(text))
            if left < right:
                segments.append(Segment(text[left - at : right - at], self.style_of(role)))
            at += len(text)
        return segments

    def _marked(self, line: int) -> tuple[int, int]:
        span = self.text_selection.get_span(line) if self.text_selection else None
        if span is None:
            return (0, 0)
        return (span[0], 1_000_000_000 if span[1] == -1 else span[1])

    def _cut(self, text: str, at: int, style: Style, marked: tuple[int, int]) -> list[Segment]:
        low, high = (max(0, min(len(text), edge - at)) for edge in marked)
        if low >= high:
            return [Segment(text, style)]
        chosen = style + self.screen.get_component_rich_style("screen--selection")
        parts = [Segment(text[:low], style), Segment(text[low:high], chosen), Segment(text[high:], style)]
        return [part for part in parts if part.text]
