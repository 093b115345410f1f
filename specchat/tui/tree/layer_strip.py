"""Where the target decided: a strip of its layers for one node of a round, and a heat line for a whole reply."""

from __future__ import annotations

from collections.abc import Sequence

from specchat.engine.protocol.events import RoundDone
from specchat.engine.protocol.round_parts import Lens
from specchat.tui.text.cells import ScreenLine, spark
from specchat.tui.tree.picture import Marks, label

_MOST_CELLS = 48
"""Cells of a heat line, at most; of longer replies each cell is the mean of several tokens."""


def lens_at(round: RoundDone, parent: int) -> Lens | None:
    """What was looked at where the target went on from this node; None where it was not asked, or not there."""
    visited = [0, *round.verdict.path]
    at = visited.index(parent) if parent in visited else len(round.pieces)
    return round.pieces[at].lens if at < len(round.pieces) else None


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
    ends = [top.layer - 1 for top in lens.tops[1:]] + [lens.layers]
    choice = lens.tops[-1].token
    fits: list[bool] = []
    for top, end in zip(lens.tops, ends, strict=True):
        fits += [top.token == choice] * (end - top.layer + 1)
    places = [(at * lens.layers // cells, (at + 1) * lens.layers // cells) for at in range(cells)]
    return [all(fits[begin:end]) for begin, end in places]


def heat_line(rounds: Sequence[RoundDone]) -> str:
    """How late each kept token was decided, low is early: `▂▁█▅ decided at layer 21 of 30 on average, █ is the last`.

    Empty where no token tells.
    """
    lenses = [piece.lens for round in rounds for piece in round.pieces if piece.lens is not None]
    if not lenses:
        return ""
    share = [lens.decided / lens.layers for lens in lenses]
    cells = min(len(share), _MOST_CELLS)
    bounds = [(at * len(share) // cells, (at + 1) * len(share) // cells) for at in range(cells)]
    means = [sum(share[begin:end]) / (end - begin) for begin, end in bounds]
    mean = sum(lens.decided for lens in lenses) / len(lenses)
    each = "each a token" if cells == len(share) else f"each some {len(share) / cells:.0f} tokens"
    return f"{spark(means, 1.0)} decided at layer {mean:.0f} of {lenses[-1].layers} on average · low is early, {each}"
