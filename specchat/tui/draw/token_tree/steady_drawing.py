"""Draws one tree after another without changing the way from round to round."""

from __future__ import annotations

from dataclasses import dataclass, field

from specchat.engine.protocol.events import RoundDone
from specchat.tui.draw.token_tree import Drawing, Marks, Mode, Picture, draw, fitting_mode, hides_most

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
