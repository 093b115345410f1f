"""Writes the frames of a clip as a GIF, for places that show no SVG that moves.

Letters become pixels with Pillow and a font of the system's. Pillow is an extra: SVG and cast need neither, and a
rasteriser of our own would need a font in the package.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from io import BytesIO
from typing import TYPE_CHECKING

from rich.cells import cell_len

from specchat.errors import UsageError, installs
from specchat.tui.draw.clip_frames import COLUMNS, Frame
from specchat.tui.draw.clip_styles import BOLD, COLOURS, STRUCK
from specchat.tui.draw.theme import DARK
from specchat.tui.text.cells import ScreenLine

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw
    from PIL.ImageFont import FreeTypeFont

FONTS = (
    "DejaVuSansMono.ttf", "Menlo.ttc", "CascadiaMono.ttf", "consola.ttf", "LiberationMono-Regular.ttf",
    "NotoSansMono-Regular.ttf", "seguisym.ttf", "Apple Symbols.ttf",
)  # fmt: skip
"""Fonts of Linux, macOS and Windows. The first that is there is used, and the others for signs that it lacks."""

_SIZE, _LINE, _MARGIN = 16, 21, 18
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
        self._fonts = [font for name in FONTS if (font := _font(name)) is not None]
        if not self._fonts:
            raise UsageError(f"a GIF needs a font, and none of these was found: {', '.join(FONTS)}")
        self._missing = [bytes(font.getmask(_NOWHERE)) for font in self._fonts]
        self.of = lru_cache(maxsize=None)(self._of)

    @property
    def cell(self) -> float:
        """Pixels from one column to the next."""
        return float(self._fonts[0].getlength("M"))

    def _of(self, character: str) -> FreeTypeFont:
        """The first font that has this character, or the first of all."""
        having = (
            font
            for font, missing in zip(self._fonts, self._missing, strict=True)
            if bytes(font.getmask(character)) != missing
        )
        return next(having, self._fonts[0])


def _font(name: str) -> FreeTypeFont | None:
    from PIL import ImageFont

    try:
        return ImageFont.truetype(name, _SIZE, layout_engine=ImageFont.Layout.BASIC)
    except OSError:
        return None


def _drawn(frame: Frame, height: int, fonts: _Fonts) -> Image:
    from PIL import Image, ImageDraw

    size = (round(COLUMNS * fonts.cell) + 2 * _MARGIN, height * _LINE + 2 * _MARGIN)
    picture = Image.new("RGB", size, _rgb(DARK.background))
    draw = ImageDraw.Draw(picture)
    for y, line in enumerate(frame.lines):
        _draw_line(draw, line, _MARGIN + y * _LINE, fonts)
    return picture


def _draw_line(draw: ImageDraw, line: ScreenLine, y: int, fonts: _Fonts) -> None:
    """Each character in its own column, whatever its font."""
    column = 0
    for text, role in line:
        colour = _rgb(COLOURS.get(role, DARK.foreground))
        begin = column
        for character in text:
            at = (_MARGIN + column * fonts.cell, y)
            if character.strip():
                draw.text(at, character, colour, fonts.of(character))
                if role in BOLD:
                    draw.text((at[0] + 0.5, y), character, colour, fonts.of(character))
            column += cell_len(character)
        if role in STRUCK:
            middle = y + _LINE // 2
            draw.line((_MARGIN + begin * fonts.cell, middle, _MARGIN + column * fonts.cell, middle), colour)


def _palette() -> list[_RGB]:
    """The background, and every colour in steps from it."""
    ground = _rgb(DARK.background)
    colours = dict.fromkeys([DARK.foreground, *COLOURS.values()])
    steps = [step / _SHADES for step in range(1, _SHADES + 1)]
    return [ground, *(_mixed(ground, _rgb(colour), share) for colour in colours for share in steps)]


def _mixed(ground: _RGB, colour: _RGB, share: float) -> _RGB:
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(ground, colour, strict=True))
    return red, green, blue


def _rgb(colour: str | None) -> _RGB:
    """`#10141b` as numbers."""
    assert colour, "the dark theme has all of its colours"
    red, green, blue = bytes.fromhex(colour[1:])
    return red, green, blue
