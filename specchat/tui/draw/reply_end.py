"""The end of a reply as a few screen lines."""

from __future__ import annotations

from collections.abc import Sequence

from specchat.tui.text.cells import ScreenLine, clip
from specchat.tui.text.wrap import wrap


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
    return [_between(kept, start, start + len(whole[start:end].rstrip())) for start, end in spans[-height:]]


def _between(runs: Sequence[tuple[str, str]], start: int, end: int) -> ScreenLine:
    """The part of the runs from one character to another."""
    line: ScreenLine = []
    at = 0
    for text, role in runs:
        left, right = max(start, at), min(end, at + len(text))
        if left < right:
            line.append((text[left - at : right - at], role))
        at += len(text)
    return line


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
