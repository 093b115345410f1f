"""Screen lines, made of (text, role), from which widgets are drawn: measured, cut and wrapped in terminal cells.

A role is a name such as `accepted`; the widget that draws the line turns it into a style of the theme.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rich.cells import cell_len

from specchat.engine.protocol.text import between, visible

Run = tuple[str, str]
ScreenLine = list[Run]

ELLIPSIS = "…"

MOST_CHARACTERS = 100_000
"""Characters of a text that are drawn; wrapping them takes a few hundredths of a second."""

MOST_LINES = 2_000
"""Lines of a text that are drawn."""

LONGEST_LINE = 2_000
"""Characters of one line that are drawn."""


def width_of(line: Iterable[Run]) -> int:
    return sum(cell_len(text) for text, _ in line)


def cut(text: str, cells: int) -> str:
    """The text in at most so many cells, with an ellipsis where something was cut."""
    longest = 16 * max(cells, 16)  # more characters in these cells are marks above each other
    if len(text) <= longest and cell_len(text) <= cells:
        return text
    if cells <= 1:
        return ELLIPSIS[:cells]
    kept = ""
    room = cells - 1
    for character in text[:longest]:
        room -= cell_len(character)
        if room < 0:
            break
        kept += character
    return kept + ELLIPSIS


def clip(line: ScreenLine, cells: int) -> ScreenLine:
    """The line in at most so many cells."""
    clipped: ScreenLine = []
    for text, role in line:
        wide = cell_len(text[: 16 * max(cells, 16) + 1])
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


def first_lines(text: str, most: int = MOST_LINES, room: int = MOST_CHARACTERS) -> list[Run]:
    """The beginning of a text from outside, safe to draw: at most so many lines, and characters in all of them.

    A remark behind it says how much more there is.
    """
    lines = text.split("\n", most)
    more = lines.pop().count("\n") + 1 if len(lines) > most else 0
    shown: list[str] = []
    cropped = 0
    for at, line in enumerate(lines):
        if room <= 0:
            more += len(lines) - at
            break
        kept = min(LONGEST_LINE, room)
        shown.append(cut(visible(line[:kept]), LONGEST_LINE))
        cropped += max(0, len(line) - kept)
        room -= min(len(line), kept) + 1
    rest = [f"{more:,} more lines" if more else "", f"{cropped:,} more characters" if cropped else ""]
    said = ", ".join(part for part in rest if part)
    return [("\n".join(shown), "text"), *([(f"\n… {said}", "dim")] if said else [])]


def first_runs(runs: Sequence[Run], room: int = MOST_CHARACTERS) -> list[Run]:
    """The first runs, with at most so many characters, and a remark that says how much more there is."""
    shown: list[Run] = []
    for text, role in runs:
        if room <= 0:
            break
        shown.append((text[:room], role))
        room -= len(text)
    cropped = sum(len(text) for text, _ in runs[len(shown) :]) + max(0, -room)
    return [*shown, (f"\n… {cropped:,} more characters", "dim")] if cropped else shown


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
    eighths = (0 if value <= 0 else max(1, min(8, round(value / highest * 8))) for value in values)
    return "".join(" ▁▂▃▄▅▆▇█"[height] for height in eighths)


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


def wrapped_lines(text: str, width: int, most: int | None = None) -> list[str]:
    """The screen lines of a line of text, without the blanks at their ends: at least one, the last of `most` cut."""
    lines = [text[start:end].strip() for start, end in wrap(text, width)]
    if most is None or len(lines) <= most:
        return lines
    return [*lines[: most - 1], cut(" ".join(lines[most - 1 :]), width)]


def paragraph(text: str, width: int, role: str) -> list[ScreenLine]:
    """A line of text, wrapped, in one role."""
    return [[(line, role)] for line in wrapped_lines(text, width)]


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


def last_wrapped_lines(runs: Sequence[tuple[str, str]], width: int, height: int) -> list[ScreenLine]:
    """The end of these runs as at most `height` screen lines, long ones wrapped, empty ones left out."""
    kept: list[tuple[str, str]] = []
    characters = 0
    for text, role in reversed(runs):
        if characters > width * height:
            break
        kept.insert(0, (text.replace("\t", "    "), role))
        characters += len(text.strip())
    whole = "".join(text for text, _ in kept)
    spans: list[tuple[int, int]] = []
    begin = 0
    for line in whole.split("\n"):
        spans += [(begin + start, begin + end) for start, end in wrap(line, max(1, width)) if line[start:end].strip()]
        begin += len(line) + 1
    return [between(kept, start, start + len(whole[start:end].rstrip())) for start, end in spans[-height:]]


def last_lines(runs: Sequence[tuple[str, str]], width: int, height: int) -> list[ScreenLine]:
    """The last `height` lines of these runs as they are broken, each cut at the width; an empty last line is none."""
    lines: list[ScreenLine] = [[]]
    for text, role in runs:
        first, *others = text.split("\n")
        lines[-1].append((first, role))
        lines += [[(line, role)] for line in others]
    screen_lines = [clip([run for run in line if run[0]], width) for line in lines]
    if not screen_lines[-1]:
        screen_lines.pop()
    return screen_lines[-height:]
