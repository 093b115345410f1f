"""Screen lines, made of (text, role), from which widgets are drawn, measured in terminal cells.

A role is a name such as `accepted`; the widget that draws the line turns it into a style of the theme.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.cells import cell_len

Run = tuple[str, str]
ScreenLine = list[Run]

ELLIPSIS = "…"


def width_of(line: Iterable[Run]) -> int:
    """Terminal cells the line takes."""
    return sum(cell_len(text) for text, _ in line)


def cut(text: str, cells: int) -> str:
    """The text in at most so many cells, with an ellipsis where something was cut."""
    if cell_len(text) <= cells:
        return text
    if cells <= 1:
        return ELLIPSIS[:cells]
    kept = ""
    room = cells - 1
    for character in text:
        room -= cell_len(character)
        if room < 0:
            break
        kept += character
    return kept + ELLIPSIS


def clip(line: ScreenLine, cells: int) -> ScreenLine:
    """The line in at most so many cells."""
    clipped: ScreenLine = []
    for text, role in line:
        wide = cell_len(text)
        if wide > cells:
            return [*clipped, (cut(text, cells), role)] if cells > 0 else clipped
        clipped.append((text, role))
        cells -= wide
    return clipped


def padded(line: ScreenLine, cells: int) -> ScreenLine:
    """The line filled up with blanks to exactly so many cells (or clipped to them)."""
    line = clip(line, cells)
    gap = cells - width_of(line)
    return [*line, (" " * gap, "")] if gap > 0 else line


def titled_rule(title: str, cells: int) -> ScreenLine:
    """A line across so many cells, with a title in it."""
    rest = "─" * max(0, cells - cell_len(title) - 3)
    return clip([("─ ", "line"), (title, "dim"), (f" {rest}", "line")], cells)


def bar(share: float, cells: int) -> str:
    """A thin horizontal bar in half cells."""
    full, half = divmod(round(max(0.0, min(1.0, share)) * cells * 2), 2)
    return ("━" * full + "╸" * half).ljust(cells)


def spark(values: Sequence[float], top: float | None = None) -> str:
    """One column per value; the highest fills it."""
    highest = top if top is not None else max(values, default=0.0)
    if highest <= 0:
        return " " * len(values)
    return "".join(
        " " if value <= 0 else "▁▂▃▄▅▆▇█"[max(0, min(7, round(value / highest * 8) - 1))] for value in values
    )
