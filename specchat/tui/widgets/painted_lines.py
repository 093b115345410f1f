"""The base of widgets that are drawn from lines of (text, role), which is cheaper than rendering with Rich."""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest
from typing import Any

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from specchat.tui.state.chat import Chat
from specchat.tui.text.cells import ScreenLine, clip
from specchat.tui.text.theme import ROLES
from specchat.tui.textual_patches.widget_parts import drop_drawn_lines, set_border_titles, styles_of_part


class RoleStyles(Widget):
    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        self._styles: dict[str, Style] = {}

    def notify_style_update(self) -> None:
        self._styles.clear()
        super().notify_style_update()

    def style_of(self, role: str) -> Style:
        """A role's style in the current theme, on this widget's background."""
        if role not in self._styles:
            assert not role or role in ROLES, f"there is no role {role!r}"
            self._styles[role] = styles_of_part(self, f"role--{role}").rich_style if role else self.rich_style
        return self._styles[role]


class PaintedLines(RoleStyles):
    """Shows what `paint` returns for its size; `paint` is called only after `repaint` or a new size."""

    ALLOW_SELECT = False

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._lines: list[ScreenLine] | None = None
        self._painted_for = (0, 0)
        self._titles = ("", "")

    def paint(self, width: int, height: int) -> list[ScreenLine]:
        """At most `height` lines of at most `width` cells."""
        return []

    def repaint(self) -> None:
        """Call `paint` again, and draw the lines that have changed."""
        if not self.display:  # reading the size of a hidden widget would lay out the whole screen
            self._lines = None
            drop_drawn_lines(self)
            return
        width, height = size = self.size
        before = self._lines
        if before is None or self._painted_for != size:
            self._lines = None
            self.refresh()
            return
        self._lines = self.paint(width, height)
        nothing: ScreenLine = []
        pairs = zip_longest(before, self._lines, fillvalue=nothing)
        if changed := [y for y, (was, now) in zip(range(height), pairs, strict=False) if was != now]:
            self.refresh(*(Region(0, y, width, 1) for y in changed))

    def entitle(self, *, title: str | None = None, subtitle: str | None = None) -> None:
        """Set the titles in the border; only the border is drawn, and only if they have changed."""
        before = self._titles
        self._titles = before[0] if title is None else title, before[1] if subtitle is None else subtitle
        if self._titles != before:
            set_border_titles(self, *self._titles)

    def render_line(self, y: int) -> Strip:
        width, height = self.size
        if self._lines is None or self._painted_for != (width, height):
            self._painted_for = (width, height)
            self._lines = self.paint(width, height)
        if y >= len(self._lines):
            return Strip.blank(width, self.style_of(""))
        segments = [Segment(text, self.style_of(role)) for text, role in clip(self._lines[y], width)]
        return Strip(segments).adjust_cell_length(width, self.style_of(""))


class PaintedChat(PaintedLines):
    """Painted from the state of the chat."""

    def __init__(self, chat: Chat, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._chat = chat


class LinesView(PaintedLines):
    """Calls the function with a width and a height on each `repaint`, and shows its lines."""

    def __init__(self, lines: Callable[[int, int], list[ScreenLine]], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._source = lines

    def paint(self, width: int, height: int) -> list[ScreenLine]:
        return self._source(width, height)[:height]
