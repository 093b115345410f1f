"""Writes the frames of a clip as an animated SVG, as an asciinema recording, or as a GIF."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from html import escape
from itertools import accumulate

from specchat.tui.draw.clip_frames import COLUMNS, Frame
from specchat.tui.draw.clip_gif import as_gif
from specchat.tui.draw.clip_styles import BOLD, COLOURS, ITALIC, STRUCK
from specchat.tui.draw.theme import DARK
from specchat.tui.text.cells import ScreenLine, width_of

_CELL, _LINE, _SIZE, _MARGIN = 8.4, 19, 14, 16


def as_svg(frames: Sequence[Frame]) -> bytes:
    """One picture that moves by CSS alone; where nothing moves, the last frame is seen."""
    width = round(COLUMNS * _CELL + 2 * _MARGIN)
    height = max(len(frame.lines) for frame in frames) * _LINE + 2 * _MARGIN
    *moving, last = (_svg_lines(frame.lines) for frame in frames)
    groups = [f'<g class="f" id="f{number}">{lines}</g>' for number, lines in enumerate(moving)]
    drawn = "\n".join([*groups, f'<g id="f{len(moving)}">{last}</g>'])
    picture = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">\n'
        f"<style>\n{_styles(frames)}\n</style>\n"
        f'<rect width="100%" height="100%" rx="8" fill="{DARK.background}"/>\n{drawn}\n</svg>\n'
    )
    return picture.encode("utf-8", "replace")


def as_cast(frames: Sequence[Frame]) -> bytes:
    """A recording in asciinema's format, version 2."""
    height = max(len(frame.lines) for frame in frames)
    lines: list[object] = [{"version": 2, "width": COLUMNS, "height": height, "title": "specchat"}]
    starts = accumulate((frame.seconds for frame in frames), initial=0.0)
    for start, frame in zip(starts, frames, strict=False):
        screen = "\r\n".join(
            "".join(f"{_sgr(role)}{text}\x1b[0m" for text, role in screen_line) for screen_line in frame.lines
        )
        lines.append([round(start, 3), "o", f"\x1b[2J\x1b[H{screen}"])
    lines.append([round(sum(frame.seconds for frame in frames), 3), "o", ""])
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode("utf-8", "replace")


FORMATS: dict[str, Callable[[Sequence[Frame]], bytes]] = {"svg": as_svg, "cast": as_cast, "gif": as_gif}


def _styles(frames: Sequence[Frame]) -> str:
    """The styles of the roles, and for each frame the part of the whole time in which it is seen."""
    rules = [
        f"text {{ font: {_SIZE}px ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace; white-space: pre; "
        f"fill: {DARK.foreground}; }}",
        *(f".{role} {{ fill: {colour}; }}" for role, colour in COLOURS.items()),
        *(f".{role} {{ font-weight: bold; }}" for role in BOLD),
        *(f".{role} {{ font-style: italic; }}" for role in ITALIC),
        *(f".{role} {{ text-decoration: line-through; }}" for role in STRUCK),
        ".f { opacity: 0; }",
    ]
    whole = sum(frame.seconds for frame in frames)
    begin = 0.0
    for number, frame in enumerate(frames):
        end = begin + frame.seconds
        first, last = (f"{100 * at / whole:.3f}%" for at in (begin, end))
        hidden = "" if number == 0 else "0% { opacity: 0; } "
        after = "" if number == len(frames) - 1 else f" {last} {{ opacity: 0; }}"
        rules.append(f"@keyframes k{number} {{ {hidden}{first} {{ opacity: 1; }}{after} }}")
        rules.append(f"#f{number} {{ animation: k{number} {whole:.2f}s step-end infinite; }}")
        begin = end
    return "\n".join(rules)


def _svg_lines(lines: Sequence[ScreenLine]) -> str:
    return "".join(_svg_line(line, _MARGIN + (y + 1) * _LINE - 5) for y, line in enumerate(lines))


def _svg_line(line: ScreenLine, y: int) -> str:
    """Each run at the column of its first character, so that fonts of another width keep the columns."""
    runs, column = [], 0
    for text, role in line:
        if shown := text.strip(" "):
            lead = len(text) - len(text.lstrip(" "))
            x = _MARGIN + (column + lead) * _CELL
            name = f' class="{role}"' if role in COLOURS else ""
            runs.append(f'<text x="{x:.1f}" y="{y}"{name}>{escape(shown)}</text>')
        column += width_of([(text, role)])
    return "".join(runs)


def _sgr(role: str) -> str:
    """The terminal's code of a role's style."""
    colour = str(COLOURS.get(role) or DARK.foreground)
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    styles = [code for code, roles in (("1", BOLD), ("3", ITALIC), ("9", STRUCK)) if role in roles]
    return f"\x1b[{';'.join([*styles, f'38;2;{red};{green};{blue}'])}m"
