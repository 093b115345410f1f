"""Text that grows: wrapped line by line, each run in its own style, only the last line wrapped again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Size
from textual.selection import Selection
from textual.strip import Strip
from textual.widget import Widget

from specchat.tui.rows import Row
from specchat.tui.theme import ROLE_CLASSES
from specchat.tui.wrap import wrap

_TAB = "    "


class Tinted(Widget):
    """Runs of (text, role), never parsed as markup. Text must have gone through `visible`."""

    DEFAULT_CSS = """
    Tinted { width: 1fr; height: auto; }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = set(ROLE_CLASSES)

    def __init__(
        self, runs: Iterable[tuple[str, str]] = (), *, id: str | None = None, classes: str | None = None
    ) -> None:
        super().__init__(id=id, classes=classes)
        self._lines: list[Row] = [[]]
        self._rows: list[tuple[int, int, int]] = [(0, 0, 0)]  # (line, start, end)
        self._wrapped_for = 80
        self._styles: dict[str, Style] = {}
        self.add(runs)

    @property
    def text(self) -> str:
        """All of it, without styles."""
        return "\n".join("".join(text for text, _ in line) for line in self._lines)

    def add(self, runs: Iterable[tuple[str, str]]) -> None:
        """Write at the end."""
        before, first = self._height(), len(self._lines) - 1
        for text, role in runs:
            head, *more = text.replace("\t", _TAB).split("\n")
            self._append(head, role)
            for part in more:
                self._lines.append([])
                self._append(part, role)
        self._wrap_from(first)
        self.refresh(layout=self._height() != before)

    def drop_lines(self, count: int) -> None:
        """Forget the first lines: they are shown elsewhere now."""
        self._lines = self._lines[count:] or [[]]
        self._wrap_from(0)
        self.refresh(layout=True)

    def set(self, runs: Iterable[tuple[str, str]]) -> None:
        """Write from the beginning."""
        self._lines, self._rows = [[]], []
        self.add(runs)
        self.refresh(layout=True)

    def notify_style_update(self) -> None:
        """Forget the styles of the old theme."""
        self._styles.clear()
        super().notify_style_update()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Rows at this width; a line that only just began is not shown yet."""
        if width != self._wrapped_for:
            self._wrapped_for = width
            self._wrap_from(0)
        return self._height()

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """Selected text without the breaks that wrapping made."""
        return selection.extract(self.text), "\n"

    def render_line(self, y: int) -> Strip:
        """One wrapped row."""
        width = self.size.width
        if width != self._wrapped_for:
            self._wrapped_for = width
            self._wrap_from(0)
        if y >= len(self._rows):
            return Strip.blank(width, self.rich_style)
        line, start, end = self._rows[y]
        strip = Strip(self._segments(line, start, end)).apply_offsets(start, line)
        return strip.adjust_cell_length(width, self.rich_style)

    def _height(self) -> int:
        rows = len(self._rows)
        return rows - 1 if rows > 1 and not self._lines[-1] else rows

    def _append(self, text: str, role: str) -> None:
        if text:
            self._lines[-1].append((text, role))

    def _wrap_from(self, line: int) -> None:
        while self._rows and self._rows[-1][0] >= line:
            self._rows.pop()
        for index in range(line, len(self._lines)):
            text = "".join(text for text, _ in self._lines[index])
            self._rows += [(index, start, end) for start, end in wrap(text, self._wrapped_for)]

    def _segments(self, line: int, start: int, end: int) -> list[Segment]:
        marked = self._marked(line)
        segments: list[Segment] = []
        at = 0
        for text, role in self._lines[line]:
            left, right = max(start, at), min(end, at + len(text))
            if left < right:
                segments += self._cut(text[left - at : right - at], left, self._style_of(role), marked)
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

    def _style_of(self, role: str) -> Style:
        if role not in self._styles:
            self._styles[role] = self.get_component_rich_style(f"role--{role}") if role else self.rich_style
        return self._styles[role]
