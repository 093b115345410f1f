"""A text widget for growing text: each run has its own style, and new text wraps the last line only."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region, Size
from textual.selection import Selection
from textual.strip import Strip

from specchat.engine.protocol.text import between
from specchat.tui.text.cells import ScreenLine, wrap
from specchat.tui.textual_patches.widget_parts import GrowingLines
from specchat.tui.widgets.painted_lines import RoleStyles

_TAB = "    "

Position = tuple[int, int]
"""A line of text, and a character in it."""


class TintedText(RoleStyles, GrowingLines):
    """Runs of (text, role), never parsed as markup. Text must have gone through `visible`."""

    DEFAULT_CSS = """
    TintedText { width: 1fr; height: auto; }
    """

    def __init__(
        self, runs: Iterable[tuple[str, str]] = (), *, id: str | None = None, classes: str | None = None
    ) -> None:
        super().__init__(id=id, classes=classes)
        self.step = 1
        """The height is rounded up to a multiple of this, so that fast text needs fewer layouts."""
        self._lines: list[ScreenLine] = [[]]
        self._preview: ScreenLine = []
        self._preview_lines: list[tuple[int, int, int]] = []  # the last screen line, with the preview behind it
        self._preview_within = False
        self._run_starts: list[list[int]] = [[]]  # where each run of each line begins
        self._texts = [""]
        self._mark: tuple[Position, Position] | None = None
        self._screen_lines: list[tuple[int, int, int]] = [(0, 0, 0)]  # (line of text, start, end)
        self._wrapped_for = 80
        self.add(runs)

    @property
    def text(self) -> str:
        return "\n".join(self._texts)

    def add(self, runs: Iterable[tuple[str, str]]) -> None:
        """Append text and drop the preview; only the last screen line and what follows is wrapped and drawn."""
        before = self._height()
        line, start, _ = self._screen_lines.pop()
        first = len(self._screen_lines)
        self._clear_preview()
        for text, role in runs:
            for at, part in enumerate(text.replace("\t", _TAB).split("\n")):
                if at:
                    self._lines.append([])
                    self._run_starts.append([])
                    self._texts.append("")
                self._append(part, role)
        self._wrap_from(line, start)
        self._draw_from(first, before)

    def set_preview(self, runs: Iterable[tuple[str, str]], *, within: bool = False) -> None:
        """Show these runs behind the text until more is added. They are not part of it: not selected, not copied.

        They wrap as the text would; with `within`, only those that fit into the last screen line are shown.
        """
        preview = [(text, role) for text, role in runs if text]
        if (preview, within) == (self._preview, self._preview_within):
            return
        before = self._height()
        self._preview, self._preview_within = preview, within
        self._wrap_preview()
        self._draw_from(len(self._screen_lines) - 1, before)

    def positions(self, texts: Iterable[str]) -> list[Position]:
        """Where these texts begin, which stand here one after another from the start on, and where the last ends."""
        line = column = 0
        found = [(line, column)]
        for text in texts:
            head, *more = text.replace("\t", _TAB).split("\n")
            line, column = (line + len(more), len(more[-1])) if more else (line, column + len(head))
            found.append((line, column))
        return found

    def set_mark(self, mark: tuple[Position, Position] | None) -> None:
        """Mark the text from one position to another; of an empty one, or a line's end, the next cell."""
        if mark != self._mark:
            self._mark = mark
            self.refresh()

    def screen_line_of(self, position: Position) -> int:
        return max(0, bisect_right(self._screen_lines, position, key=lambda line: line[:2]) - 1)

    def cell_of(self, position: Position) -> int:
        line, at = position
        _, start, _ = self._screen_lines[self.screen_line_of(position)]
        return cell_len(self._texts[line][start:at])

    def position_at(self, x: int, y: int) -> Position | None:
        """The position in this cell; None where there is no text."""
        if not 0 <= y < len(self._screen_lines):
            return None
        line, start, end = self._screen_lines[y]
        at = start
        while at < end and (x := x - cell_len(self._texts[line][at])) >= 0:
            at += 1
        return line, at

    def drop_lines(self, count: int) -> None:
        """Remove the first lines, which are now shown as Markdown."""
        self._clear_preview()
        if count >= len(self._lines):
            self._clear()
        else:
            del self._lines[:count], self._run_starts[:count], self._texts[:count]
            left = (line for line in self._screen_lines if line[0] >= count)
            self._screen_lines = [(line - count, start, end) for line, start, end in left]
        self.refresh(layout=True)

    def set(self, runs: Iterable[tuple[str, str]]) -> None:
        self._clear()
        self.add(runs)
        self.refresh(layout=True)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Screen lines at this width; an empty last line of text does not count."""
        self._set_width(width)
        return self._height()

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """Selected text without the breaks that wrapping made."""
        return selection.extract(self.text), "\n"

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        self._set_width(width)
        shown, at, last = self._screen_lines, y, len(self._screen_lines) - 1
        if self._preview_lines and y >= last:
            shown, at = self._preview_lines, y - last
        if at >= len(shown):
            return Strip.blank(width, self.rich_style)
        line, start, end = shown[at]
        strip = Strip(self._segments(line, start, end)).apply_offsets(start, line)
        return strip.adjust_cell_length(width, self.rich_style)

    def _height(self) -> int:
        shown = len(self._screen_lines) - 1 + (len(self._preview_lines) or not self._last_line_is_empty())
        return -(-shown // self.step) * self.step

    def _last_line_is_empty(self) -> bool:
        return len(self._screen_lines) > 1 and not self._texts[-1]

    def _draw_from(self, first: int, before: int) -> None:
        """Draw the screen lines from this one on; lay out only if the height has changed."""
        height = self._height()
        changed = Region(0, first, self.size.width, max(before, height, len(self._screen_lines)) - first)
        self.refresh(changed, layout=height != before)

    def _wrap_preview(self) -> None:
        line, begin, _ = self._screen_lines[-1]
        text = self._texts[line][begin:] + "".join(text for text, _ in self._preview)
        screen_lines = wrap(text, self._wrapped_for) if self._preview else []
        if self._preview_within:
            screen_lines = [] if self._last_line_is_empty() else screen_lines[:1]
        self._preview_lines = [(line, begin + start, begin + end) for start, end in screen_lines]

    def _clear_preview(self) -> None:
        self._preview, self._preview_lines = [], []

    def _clear(self) -> None:
        self._lines, self._run_starts, self._texts, self._screen_lines = [[]], [[]], [""], [(0, 0, 0)]

    def _append(self, text: str, role: str) -> None:
        if not text:
            return
        line = self._lines[-1]
        if line and line[-1][1] == role:
            line[-1] = (line[-1][0] + text, role)
        else:
            line.append((text, role))
            self._run_starts[-1].append(len(self._texts[-1]))
        self._texts[-1] += text

    def _set_width(self, width: int) -> None:
        if width != self._wrapped_for:
            self._wrapped_for = width
            self._screen_lines = []
            self._wrap_from(0, 0)
            self._wrap_preview()

    def _wrap_from(self, line: int, begin: int) -> None:
        """Add the screen lines from here on. Later text never changes where one begins."""
        for index in range(line, len(self._lines)):
            text = self._texts[index][begin:]
            self._screen_lines += [(index, begin + start, begin + end) for start, end in wrap(text, self._wrapped_for)]
            begin = 0

    def _segments(self, line: int, start: int, end: int) -> list[Segment]:
        selected = self._selected_span(line)
        segments: list[Segment] = []
        starts = self._run_starts[line]
        for index in range(max(0, bisect_right(starts, start) - 1), len(starts)):
            at = starts[index]
            if at >= end:
                break
            text, role = self._lines[line][index]
            left, right = max(start, at), min(end, at + len(text))
            segments += self._styled(text[left - at : right - at], left, self.style_of(role), selected)
        if self._mark is not None:
            segments = self._marked(segments, line, start, end)
        return segments + (self._preview_segments(start, end) if line == len(self._lines) - 1 else [])

    def _marked(self, segments: list[Segment], line: int, start: int, end: int) -> list[Segment]:
        """The segments of a screen line with the mark, if it is in there."""
        assert self._mark is not None, "asked only then"
        (first, left), (last, right) = self._mark
        low, high = (left if line == first else 0), (right if line == last else len(self._texts[line]))
        if not first <= line <= last or (line == last != first and not high) or low > end or high < start:
            return segments
        style, at, marked = self.style_of("selected"), start, list[Segment]()
        for text, of, _ in segments:
            edges = [max(0, min(len(text), edge - at)) for edge in (low, high)]
            parts = zip((text[: edges[0]], text[slice(*edges)], text[edges[1] :]), (of, style, of), strict=True)
            marked += [Segment(part, one) for part, one in parts if part]
            at += len(text)
        return [*marked, Segment(" ", style)] if low >= end == len(self._texts[line]) else marked

    def _preview_segments(self, start: int, end: int) -> list[Segment]:
        """The part of the preview in a screen line of the last line of text."""
        at = len(self._texts[-1])
        return [Segment(text, self.style_of(role)) for text, role in between(self._preview, start - at, end - at)]

    def _selected_span(self, line: int) -> tuple[int, int]:
        span = self.text_selection.get_span(line) if self.text_selection else None
        start, end = span or (0, 0)
        return start, 1_000_000_000 if end == -1 else end

    def _styled(self, text: str, at: int, style: Style, selected: tuple[int, int]) -> list[Segment]:
        low, high = (max(0, min(len(text), edge - at)) for edge in selected)
        if low >= high:
            return [Segment(text, style)]
        chosen = style + self.screen.get_component_rich_style("screen--selection")
        parts = [Segment(text[:low], style), Segment(text[low:high], chosen), Segment(text[high:], style)]
        return [part for part in parts if part.text]
