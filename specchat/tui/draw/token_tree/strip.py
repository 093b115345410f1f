"""The layout "strip": one line with the path, as tokens if they fit, else as marks, and counts of other nodes."""

from __future__ import annotations

from specchat.tui.draw.token_tree.marks import Marks
from specchat.tui.draw.token_tree.picture import Picture
from specchat.tui.text.cells import ScreenLine, width_of


def strip(picture: Picture, width: int, height: int, marks: Marks) -> list[ScreenLine]:
    """One line: the most detailed form that fits."""
    rest = _rest(picture, marks)
    spelled = [run for node in picture.spine for run in node.runs(marks)]
    marked: ScreenLine = [node.mark(marks) for node in picture.spine[1:]]
    counted: ScreenLine = [
        (f"{marks.glyph(state)}{count}", state)
        for state in ("accepted", "bonus", "pending")
        if (count := sum(node.shown_state == state for node in picture.spine))
    ]
    for line in ([*spelled, *rest], spelled, [*marked, *rest], marked, [*counted, *rest], counted):
        if width_of(line) <= width:
            return [line]
    return [counted]


def _rest(picture: Picture, marks: Marks) -> ScreenLine:
    """How many there are of each other state; the numbers are not struck through, as their tokens would be."""
    line: ScreenLine = []
    beside = [node for node in picture.nodes if node.state not in ("root", "accepted")]
    for shown_state in ("rejected", "unreached", "pruned", "cut", "pending"):
        if count := sum(node.shown_state == shown_state for node in beside):
            line.append(
                (
                    f"  {marks.glyph(shown_state)}{count}",
                    "crossed" if shown_state in ("rejected", "pruned", "cut") else shown_state,
                )
            )
    return line
