"""A clip of a reply's best rounds: its frames, and files of them: animated SVG, asciinema recording, GIF.

Letters of a GIF become pixels with Pillow and a font of the system's. SVG and cast need neither; a
rasteriser of our own would need a font in the package.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from io import BytesIO
from itertools import accumulate
from typing import TYPE_CHECKING

from rich.cells import cell_len

from specchat.engine.protocol.events import RoundDone
from specchat.engine.protocol.text import visible
from specchat.errors import UsageError, installs
from specchat.tui.text.cells import ScreenLine, cut, last_wrapped_lines, padded, paragraph, width_of
from specchat.tui.text.theme import DARK
from specchat.tui.tree import UNICODE, draw, hides_most, picture_of
from specchat.tui.tree.panel_lines import title_of

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw
    from PIL.ImageFont import FreeTypeFont


_QUIET, _LINES = DARK.variables["quiet-color"], DARK.variables["line-color"]
COLOURS = {
    "root": _QUIET, "accepted": DARK.primary, "bonus": DARK.accent, "rejected": _QUIET, "crossed": _QUIET,
    "unreached": _QUIET, "forced": DARK.success, "forbidden": DARK.warning, "pending": _QUIET, "pruned": _QUIET,
    "cut": DARK.primary, "agreed": DARK.secondary, "river": DARK.primary, "line": _LINES, "dim": _QUIET,
    "drafted": DARK.primary, "target": DARK.accent,
}  # fmt: skip
"""The colour of each role; of the others, the text's own."""

BOLD, ITALIC = ("accepted", "bonus", "forced"), ("pending", "unreached")
STRUCK = ("rejected", "pruned", "cut", "forbidden")


ROUNDS = 12
"""The most rounds of a clip."""

COLUMNS, TREE_LINES, TEXT_LINES = 100, 16, 3

PENDING_S, STEP_S, VERDICT_S = 0.4, 0.2, 0.6
"""How long a round is shown before its verdict, while it is told, and after it."""

QUESTION_S, RESULT_S = 1.8, 3.0
"""How long the question is shown before the rounds, and the result after them."""


@dataclass(frozen=True)
class Frame:
    """What is on the screen for some seconds."""

    lines: list[ScreenLine]
    seconds: float


def frames_of(rounds: Sequence[RoundDone], about: Sequence[str], question: str = "", result: str = "") -> list[Frame]:
    """The question, the rounds in a row of the last reply that show most, and the result with the best of their trees.

    Args:
        rounds: in order; those of earlier replies are left out.
        about: lines that say how the reply was made, which stand below every frame.
        result: the reply in figures.
    """
    reply = [round for round in rounds if round.id == rounds[-1].id]
    starts, worth = range(max(1, len(reply) - ROUNDS + 1)), [_worth(round) for round in reply]
    first = max(
        starts, key=lambda at: (sum(worth[at : at + ROUNDS]), at)
    )  # worth the most together, of equals the last
    shown = reply[first : first + ROUNDS]
    question = visible(question).strip()
    asked = last_wrapped_lines([("› ", "bonus"), (question, "text")], COLUMNS, TREE_LINES) if question else []
    height = max(len(asked), *(len(_drawn_tree(round, None)) for round in shown))
    frames = [Frame(_frame_lines(asked, _titled("", ""), [], height, about), QUESTION_S)] if asked else []
    for at, round in enumerate(shown, first):
        frames += _round_frames(round, _text(reply[:at]), height, about)
    best = max(shown, key=_worth)
    title = _titled(result, f"round {best.index + 1} of {len(reply)}")
    frames.append(Frame(_frame_lines(_drawn_tree(best, None), title, _text(reply), height, about), RESULT_S))
    return frames


def _worth(round: RoundDone) -> int:
    """How much there is to see: guesses that were kept, and branches that were not, of which at most as many count."""
    kept = len(round.verdict.path)
    return kept + 4 * min(kept, round.verdict.reasons.count("rejected"))


def _round_frames(round: RoundDone, before: ScreenLine, height: int, about: Sequence[str]) -> Iterator[Frame]:
    def lines(upto: int | None, text: ScreenLine) -> list[ScreenLine]:
        title = _titled(title_of(round, told=upto is None), f"round {round.index + 1}")
        return _frame_lines(_drawn_tree(round, upto), title, text, height, about)

    depths = len(round.verdict.path)
    yield Frame(lines(0, before), PENDING_S)
    if depths >= 2:
        yield Frame(lines((depths + 1) // 2, before), STEP_S)
    yield Frame(lines(None, [*before, *_text([round])]), VERDICT_S)


def _frame_lines(
    tree: list[ScreenLine], title: ScreenLine, text: ScreenLine, height: int, about: Sequence[str]
) -> list[ScreenLine]:
    end = last_wrapped_lines(text, COLUMNS, TEXT_LINES)
    return [
        title,
        [],
        *tree,
        *([] for _ in range(height - len(tree) + 1)),
        *end,
        *([] for _ in range(TEXT_LINES - len(end) + 1)),
        *(screen_line for line in about for screen_line in paragraph(line, COLUMNS, "dim")),
    ]


def _titled(said: str, right: str) -> ScreenLine:
    left: ScreenLine = [("specchat", "accepted"), ("  ", ""), (said, "text")]
    name = cut(right, COLUMNS)
    return [*padded(left, COLUMNS - width_of([(name, "")])), (name, "dim")]


def _drawn_tree(round: RoundDone, upto: int | None) -> list[ScreenLine]:
    picture = picture_of(round, UNICODE, upto)
    large = hides_most(picture, COLUMNS, TREE_LINES, "river", UNICODE)
    return draw(picture, COLUMNS, TREE_LINES, "map" if large else "river", UNICODE).lines


def _text(rounds: Sequence[RoundDone]) -> ScreenLine:
    return [(visible(piece.text), piece.origin) for round in rounds for piece in round.pieces]


_CELL, _LINE, _SIZE, _MARGIN = 8.4, 19, 14, 16


def as_svg(frames: Sequence[Frame]) -> bytes:
    """One picture that moves by CSS alone; where nothing moves, the last frame is seen."""
    width = round(COLUMNS * _CELL + 2 * _MARGIN)
    height = max(len(frame.lines) for frame in frames) * _LINE + 2 * _MARGIN
    *moving, last = (
        "".join(_svg_line(line, _MARGIN + (y + 1) * _LINE - 5) for y, line in enumerate(frame.lines))
        for frame in frames
    )
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


def _svg_line(line: ScreenLine, y: int) -> str:
    """Each run at the column of its first character, so that fonts of another width keep the columns."""
    runs, column = [], 0
    for text, role in line:
        if shown := text.strip(" "):
            x = _MARGIN + (column + len(text) - len(text.lstrip(" "))) * _CELL
            name = f' class="{role}"' if role in COLOURS else ""
            runs.append(f'<text x="{x:.1f}" y="{y}"{name}>{escape(shown)}</text>')
        column += cell_len(text)
    return "".join(runs)


def _sgr(role: str) -> str:
    """The terminal's code of a role's style."""
    red, green, blue = _rgb(COLOURS.get(role) or DARK.foreground)
    styles = [code for code, roles in (("1", BOLD), ("3", ITALIC), ("9", STRUCK)) if role in roles]
    return f"\x1b[{';'.join([*styles, f'38;2;{red};{green};{blue}'])}m"


FONTS = (
    "DejaVuSansMono.ttf", "Menlo.ttc", "CascadiaMono.ttf", "consola.ttf", "LiberationMono-Regular.ttf",
    "NotoSansMono-Regular.ttf", "seguisym.ttf", "Apple Symbols.ttf",
)  # fmt: skip
"""Fonts of Linux, macOS and Windows. The first that is there is used, and the others for signs that it lacks."""

_GIF_SIZE, _GIF_LINE, _GIF_MARGIN = 16, 21, 18
_SHADES = 12
"""Steps between the background and a colour, for the edges of letters; a GIF has 256 colours."""

_NOWHERE = "\U0010fffe"
"""A character that no font has."""

_RGB = tuple[int, int, int]


def as_gif(frames: Sequence[Frame]) -> bytes:
    """A picture that moves for ever.

    Raises:
        UsageError: Pillow is not installed, or no font was found.
    """
    try:
        from PIL import Image
    except ImportError:
        raise UsageError(f"a GIF needs Pillow: {installs('gif')}; /clip svg and /clip cast do not") from None
    fonts = _Fonts()
    palette = Image.new("P", (1, 1))
    palette.putpalette([value for colour in _palette() for value in colour])
    height = max(len(frame.lines) for frame in frames)
    pictures = [_drawn(frame, height, fonts).quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    out = BytesIO()
    milliseconds = [round(1000 * frame.seconds) for frame in frames]
    pictures[0].save(out, "GIF", save_all=True, append_images=pictures[1:], duration=milliseconds, loop=0)
    return out.getvalue()


class _Fonts:
    """The fonts of this machine, and which of them has a character."""

    def __init__(self) -> None:
        from PIL import ImageFont

        self._fonts: list[tuple[FreeTypeFont, bytes]] = []  # each with the picture of a character that it lacks
        for name in FONTS:
            with suppress(OSError):
                font = ImageFont.truetype(name, _GIF_SIZE, layout_engine=ImageFont.Layout.BASIC)
                self._fonts.append((font, bytes(font.getmask(_NOWHERE))))
        if not self._fonts:
            raise UsageError(f"a GIF needs a font, and none of these was found: {', '.join(FONTS)}")
        self.cell = float(self._fonts[0][0].getlength("M"))  # pixels from one column to the next
        self.of = lru_cache(maxsize=None)(self._of)

    def _of(self, character: str) -> FreeTypeFont:
        """The first font that has this character, or the first of all."""
        having = (font for font, missing in self._fonts if bytes(font.getmask(character)) != missing)
        return next(having, self._fonts[0][0])


def _drawn(frame: Frame, height: int, fonts: _Fonts) -> Image:
    from PIL import Image, ImageDraw

    size = (round(COLUMNS * fonts.cell) + 2 * _GIF_MARGIN, height * _GIF_LINE + 2 * _GIF_MARGIN)
    picture = Image.new("RGB", size, _rgb(DARK.background))
    draw = ImageDraw.Draw(picture)
    for y, line in enumerate(frame.lines):
        _draw_line(draw, line, _GIF_MARGIN + y * _GIF_LINE, fonts)
    return picture


def _draw_line(draw: ImageDraw, line: ScreenLine, y: int, fonts: _Fonts) -> None:
    """Each character in its own column, whatever its font."""
    column = 0
    for text, role in line:
        colour = _rgb(COLOURS.get(role, DARK.foreground))
        begin = column
        for character in text:
            at = (_GIF_MARGIN + column * fonts.cell, y)
            if character.strip():
                draw.text(at, character, colour, fonts.of(character))
                if role in BOLD:
                    draw.text((at[0] + 0.5, y), character, colour, fonts.of(character))
            column += cell_len(character)
        if role in STRUCK:
            middle = y + _GIF_LINE // 2
            draw.line((_GIF_MARGIN + begin * fonts.cell, middle, _GIF_MARGIN + column * fonts.cell, middle), colour)


def _palette() -> list[_RGB]:
    """The background, and every colour in steps from it."""
    ground = _rgb(DARK.background)
    found = [ground]
    for colour in dict.fromkeys([DARK.foreground, *COLOURS.values()]):
        for share in (step / _SHADES for step in range(1, _SHADES + 1)):
            red, green, blue = (round(a + (b - a) * share) for a, b in zip(ground, _rgb(colour), strict=True))
            found.append((red, green, blue))
    return found


def _rgb(colour: str | None) -> _RGB:
    """`#10141b` as numbers."""
    assert colour, "the dark theme has all of its colours"
    red, green, blue = bytes.fromhex(colour[1:])
    return red, green, blue


FORMATS: dict[str, Callable[[Sequence[Frame]], bytes]] = {"svg": as_svg, "cast": as_cast, "gif": as_gif}
