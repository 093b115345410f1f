"""The tree in one line: the path with its tokens if they fit, by its marks if not, then what was not taken."""

from __future__ import annotations

from specchat.tui.layout_tree.marks import Marks, Picture
from specchat.tui.rows import Row, width_of


def strip(picture: Picture, width: int, height: int, marks: Marks) -> list[Row]:
    """One row; the widest telling that fits."""
    rest = _rest(picture, marks)
    spelled = [run for node in picture.spine for run in node.runs(marks)]
    marked: Row = [(marks.glyph(node.state), node.state) for node in picture.spine[1:]]
    counted: Row = [
        (f"{marks.glyph(state)}{count}", state)
        for state in ("accepted", "bonus")
        if (count := sum(node.state == state for node in picture.spine))
    ]
    for row in ([*spelled, *rest], spelled, [*marked, *rest], marked, [*counted, *rest], counted):
        if width_of(row) <= width:
            return [row]
    return [counted]


def _rest(picture: Picture, marks: Marks) -> Row:
    row: Row = []
    for state in ("rejected", "unreached"):
        if count := sum(node.state == state for node in picture.nodes):
            row.append((f"  {marks.glyph(state)}{count}", state))
    return row
