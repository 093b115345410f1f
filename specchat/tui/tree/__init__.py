"""Draws one round's token tree as lines of (text, role): a pure function of the round and the size.

river   the accepted path runs along the top, rejected branches hang below their parent
log     one token of the path per line, like a commit graph; for narrow or tall rooms
map     one mark per node, by depth and likelihood; for many nodes
strip   one line, for no room at all
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from specchat.engine.protocol.events import RoundDone
from specchat.tui.text.cells import ScreenLine, clip, width_of
from specchat.tui.tree.picture import ASCII, UNICODE, Marks, Picture, number_in, picture_of
from specchat.tui.tree.river_layout import river
from specchat.tui.tree.small_layouts import log, strip, tree_map

Mode = Literal["auto", "river", "log", "map", "strip"]
MODES: tuple[Mode, ...] = ("auto", "river", "log", "map", "strip")

RIVER_FROM_COLUMNS = 38
MAP_FROM_NODES = 32

_LAYOUTS: dict[Mode, Callable[[Picture, int, int, Marks], list[ScreenLine]]] = {
    "river": river, "log": log, "map": tree_map, "strip": strip,
}  # fmt: skip


@dataclass(frozen=True)
class Drawing:
    """A drawn tree: its lines, and the cells of each node."""

    lines: list[ScreenLine]
    places: list[tuple[int, int, int, int]]  # (line, first cell, cell after the last, node)

    def node_at(self, x: int, y: int) -> int | None:
        return next((node for line, left, right, node in self.places if line == y and left <= x < right), None)

    @property
    def shown(self) -> set[int]:
        return {node for _, _, _, node in self.places}

    def scrolled_to(self, node: int, height: int) -> Drawing:
        """This many lines of it, the one with this node among them."""
        line = next((line for line, _, _, number in self.places if number == node), 0)
        top = max(0, line - height + 1)
        places = [(y - top, left, right, number) for y, left, right, number in self.places if 0 <= y - top < height]
        return Drawing(self.lines[top : top + height], places)


def fitting_mode(mode: Mode, width: int, height: int) -> Mode:
    """The mode that is used: the wanted one, or a smaller one where it does not fit."""
    if height < 2 or width < 10:
        return "strip"
    if mode == "auto":
        return "river" if width >= RIVER_FROM_COLUMNS else "log"
    return mode


def draw(picture: Picture, width: int, height: int, mode: Mode, marks: Marks) -> Drawing:
    """At most `height` lines, each at most `width` cells wide."""
    if width < 1 or height < 1:
        return Drawing([], [])
    lines = [clip(line, width) for line in _LAYOUTS[fitting_mode(mode, width, height)](picture, width, height, marks)]
    plain: list[ScreenLine] = []
    places: list[tuple[int, int, int, int]] = []
    for y, line in enumerate(lines[:height]):
        at = 0
        plain.append([])
        for text, role in line:
            number, wide = number_in(role), width_of([(text, "")])
            if number is not None:
                places.append((y, at, at + wide, number))
            plain[-1].append((text, role.partition("#")[0]))
            at += wide
    return Drawing(plain, places)


def hides_most(picture: Picture, width: int, height: int, mode: Mode, marks: Marks) -> bool:
    """Whether a large tree would leave out more than half of its nodes if it were not drawn as a map."""
    if picture.drafted < MAP_FROM_NODES or fitting_mode(mode, width, height) not in ("river", "log"):
        return False
    return len(draw(picture, width, height, mode, marks).shown) < (picture.drafted + 2) / 2


def layout(round: RoundDone, width: int, height: int, mode: Mode = "auto", marks: Marks = UNICODE) -> list[ScreenLine]:
    """A round's lines; `auto` draws a large tree as a map where most of it would be hidden otherwise."""
    return SteadyDrawing(marks).draw(round, picture_of(round, marks), width, height, mode, None).lines


__all__ = [
    "ASCII", "MODES", "UNICODE", "Drawing", "Marks", "Mode", "Picture", "draw", "fitting_mode", "hides_most", "layout",
    "picture_of",
]  # fmt: skip


_MAP_ROUNDS = 8
"""Small rounds in a row before trees are no longer drawn as a map; this avoids flicker."""

_ALL_LINES = 1000
"""Enough lines for every node."""


@dataclass
class SteadyDrawing:
    """In `auto` mode, a tree of which most would be hidden is drawn as a map, and so are some after it."""

    marks: Marks
    _decided: int = field(default=0, init=False)  # the round that was decided for
    _maps: int = field(default=0, init=False)  # rounds it stays a map

    def draw(
        self, round: RoundDone, picture: Picture, width: int, height: int, mode: Mode, chosen: int | None
    ) -> Drawing:
        """At most `height` lines, each at most `width` cells wide; the chosen node is always visible."""
        mode = self._mode(round, picture, width, height) if mode == "auto" else mode
        drawing = draw(picture, width, height, mode, self.marks)
        if chosen is None or chosen in drawing.shown or height < 2:
            return drawing
        whole = draw(picture, width, _ALL_LINES, mode, self.marks)
        if chosen in whole.shown:
            return whole.scrolled_to(chosen, height)
        return draw(picture, width, height, "map", self.marks)

    def _mode(self, round: RoundDone, picture: Picture, width: int, height: int) -> Mode:
        if self._decided != id(round):
            large = hides_most(picture, width, height, "auto", self.marks)
            self._decided, self._maps = id(round), _MAP_ROUNDS if large else max(0, self._maps - 1)
        return "map" if self._maps and fitting_mode("auto", width, height) != "strip" else "auto"
