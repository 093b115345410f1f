"""Where the target decided: a strip of its layers for one node of a round, and a heat line for a whole reply."""

from __future__ import annotations

from collections.abc import Sequence

from specchat.engine.protocol.events import RoundDone
from specchat.engine.protocol.round_nodes import heat_of, lens_at
from specchat.engine.protocol.round_parts import Lens
from specchat.tui.text.cells import ScreenLine, spark
from specchat.tui.tree.picture import Marks, label


def strip_lines(round: RoundDone, parent: int, width: int, marks: Marks) -> list[tuple[ScreenLine, str]]:
    """The strip of layers at the place behind this node, and in words where it was decided; empty where not known."""
    lens = lens_at(round, parent)
    if lens is None:
        return []
    visited = [0, *round.verdict.path]
    written = round.pieces[visited.index(parent)].token
    cells = min(lens.layers, max(1, width - 8))
    strip = "".join("█" if at else "·" for at in _likeliest_in(lens, cells))
    last = lens.tops[-1]
    words = f"{label(last.text, marks)} decided at layer\u00a0{last.layer} of\u00a0{lens.layers}"
    if len(lens.tops) > 1:
        words += f", {label(lens.tops[-2].text, marks)} before"
    if last.token != written:
        words += "; likeliest, but another was drawn"
    return [([("layers ", "dim"), (strip, "text")], words)]


def _likeliest_in(lens: Lens, cells: int) -> list[bool]:
    """Of each cell, whether the target's choice was the likeliest token in all layers that it stands for."""
    agrees = lens.agrees
    return [all(agrees[at * lens.layers // cells : (at + 1) * lens.layers // cells]) for at in range(cells)]


def heat_line(rounds: Sequence[RoundDone]) -> str:
    """How late each kept token was decided, low is early: `▂▁█▅ decided at layer 21 of 30 on average, █ is the last`.

    Empty where no token tells.
    """
    heat = heat_of(rounds)
    return "" if heat is None else f"{spark(heat.shares, 1.0)} {heat.words}"
