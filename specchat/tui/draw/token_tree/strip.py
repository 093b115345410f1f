"""The tree in one line: the path with its tokens if they fit, by its marks if not, then what was not taken."""

from __future__ import annotations

from specchat.tui.draw.token_tree.marks import Marks
from specchat.tui.draw.token_tree.picture import Picture
from specchat.tui.text.cells import Row, width_of


def strip(picture: Picture, width: int, height: int, marks: Marks) -> list[Row]:
    """One row; the widest telling that fits."""
    rest = _rest(picture, marks)
    spelled = [run for node in picture.spine for run in node.runs(marks)]
    marked: Row = [node.mark(marks) for node in picture.spine[1:]]
    counted: Row = [
        (f"{marks.glyph(state)}{count}", state)
        for state in ("accepted", "bonus", "pending")
        if (count := sum(node.look == state for node in picture.spine))
    ]
    for row in ([*spelled, *rest], spelled, [*marked, *rest], marked, [*counted, *rest], counted):
        if width_of(row) <= width:
            return [row]
    return [counted]


def _rest(picture: Picture, marks: Marks) -> Row:
    row: Row = []
    beside = [node for node in picture.nodes if node.state not in ("root", "accepted")]
    for look in ("rejected", "unreached", "pruned", "cut", "pending"):
        if count := sum(node.look == look for node in beside):
            row.append((f"  {marks.glyph(look)}{count}", look))
    return row
