"""Draw one round's token tree as rows of (text, role): a pure function of the round and the room there is.

river   the accepted path runs along the top, rejected branches hang below their parent
log     one token of the path per row, like a commit graph; for narrow or tall rooms
strip   one line, for no room at all
"""

from __future__ import annotations

from typing import Literal

from specchat.engine.events import RoundDone
from specchat.tui.layout_tree.log import log
from specchat.tui.layout_tree.marks import ASCII, UNICODE, Marks, Picture, picture_of
from specchat.tui.layout_tree.river import river
from specchat.tui.layout_tree.strip import strip
from specchat.tui.rows import Row, clip

Mode = Literal["auto", "river", "log", "strip"]
MODES: tuple[Mode, ...] = ("auto", "river", "log", "strip")

RIVER_FROM_COLUMNS = 38


def fitting_mode(mode: Mode, width: int, height: int) -> Mode:
    """The mode that is drawn: the one asked for, unless the room forbids it."""
    if height < 2 or width < 10:
        return "strip"
    if mode == "auto":
        return "river" if width >= RIVER_FROM_COLUMNS else "log"
    return mode


def layout(round: RoundDone, width: int, height: int, mode: Mode = "auto", marks: Marks = UNICODE) -> list[Row]:
    """At most `height` rows, each at most `width` cells wide."""
    if width < 1 or height < 1:
        return []
    picture = picture_of(round, marks)
    draw = {"river": river, "log": log, "strip": strip}[fitting_mode(mode, width, height)]
    return [clip(row, width) for row in draw(picture, width, height, marks)[:height]]


__all__ = ["ASCII", "MODES", "UNICODE", "Marks", "Mode", "Picture", "fitting_mode", "layout", "picture_of"]
