"""A drawn tree while it grows: what is deeper than the depth reached is blank, everything else has its final place."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from specchat.tui.draw.token_tree import Drawing, Marks
from specchat.tui.text.cells import ScreenLine, width_of


def grown_to(drawing: Drawing, depths: Sequence[int], depth: int, marks: Marks) -> list[ScreenLine]:
    """The lines of a tree of which the nodes down to this depth have been drafted.

    A connector appears together with the node it leads to; one that passes other lines, with the node further below.

    Args:
        drawing: the whole tree in the layout `river`, drawn with these marks.
        depths: the depth of every node; one that is not listed is the bonus, which is not drafted.
    """
    hidden = {node for node in drawing.shown if node >= len(depths) or depths[node] > depth}
    return [_visible(drawing, y, hidden, marks) for y in range(len(drawing.lines))]


def _visible(drawing: Drawing, y: int, hidden: Collection[int], marks: Marks) -> ScreenLine:
    line: ScreenLine = []
    at = 0
    for text, role in drawing.lines[y]:
        ahead, below = _nodes_behind(drawing, at, y)
        if role == "line":
            nodes = ahead or below
        elif role == "river":
            nodes = ahead + (below if text == marks.river_fork else [])
        else:
            nodes = [node for node in [drawing.node_at(at, y)] if node is not None]
        shown = any(node not in hidden for node in nodes) if nodes else role not in ("line", "dim")
        cells = width_of([(text, "")])
        line.append((text, role) if shown else (" " * cells, ""))
        at += cells
    return line


def _nodes_behind(drawing: Drawing, x: int, y: int) -> tuple[list[int], list[int]]:
    """The node that a connector here leads to in its own line, and the first one that it turns to further below."""
    behind = sorted((line, node) for line, left, _, node in drawing.places if left == x + 1 and line >= y)
    return [node for line, node in behind if line == y], [node for line, node in behind if line > y][:1]
