"""Wraps a line of text into screen lines of a width in terminal cells, between words where possible."""

from __future__ import annotations

import re

from rich.cells import cell_len

_WORDS = re.compile(r"[ \t]+|[^ \t]+")  # a no-break space keeps its word together


def wrap(text: str, width: int) -> list[tuple[int, int]]:
    """Where each screen line of a line of text begins and ends: offsets into `text`, at least one pair.

    Blanks at a break belong to the screen line before it and may hang over its edge; the widget crops them.
    """
    width = max(1, width)
    if len(text) <= width and cell_len(text) <= width:
        return [(0, len(text))]
    lines: list[tuple[int, int]] = []
    start, used = 0, 0
    for word in _WORDS.finditer(text):
        wide = cell_len(word.group())
        if word.group().isspace() or used + wide <= width:
            used += wide
            continue
        if used:
            lines.append((start, word.start()))
            start, used = word.start(), 0
        for cut_at in _hard_breaks(text, word.start(), word.end(), width):
            lines.append((start, cut_at))
            start = cut_at
        used = cell_len(text[start : word.end()])
    lines.append((start, len(text)))
    return lines


def _hard_breaks(text: str, start: int, end: int, width: int) -> list[int]:
    """Where a word longer than a screen line must be broken: after a no-break space if there is one in the line, and
    never before its first character.
    """
    breaks: list[int] = []
    used = blank = 0
    line = start
    for index in range(start, end):
        wide = cell_len(text[index])
        if used and used + wide > width:
            line = blank if blank > line else index
            breaks.append(line)
            used = cell_len(text[line:index])
        used += wide
        if text[index] == "\u00a0":
            blank = index + 1
    return breaks
