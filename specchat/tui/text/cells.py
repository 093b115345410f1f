"""Rows of (text, role), from which widgets are drawn, measured in terminal cells.

A role is a name such as `accepted`; the widget that draws the row turns it into a style of the theme.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.cells import cell_len

Run = tuple[str, str]
Row = list[Run]

ELLIPSIS = "…"


def width_of(row: Iterable[Run]) -> int:
    """Terminal cells the row takes."""
    return sum(cell_len(text) for text, _ in row)


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


def clip(row: Row, cells: int) -> Row:
    """The row in at most so many cells."""
    clipped: Row = []
    for text, role in row:
        wide = cell_len(text)
        if wide > cells:
            return [*clipped, (cut(text, cells), role)] if cells > 0 else clipped
        clipped.append((text, role))
        cells -= wide
    return clipped


def padded(row: Row, cells: int) -> Row:
    """The row filled up with blanks to exactly so many cells (or clipped to them)."""
    row = clip(row, cells)
    gap = cells - width_of(row)
    return [*row, (" " * gap, "")] if gap > 0 else row


def titled_rule(title: str, cells: int) -> Row:
    """A line across so many cells, with a title in it."""
    return clip([(f"─ {title} " + "─" * max(0, cells - cell_len(title) - 3), "line")], cells)


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
