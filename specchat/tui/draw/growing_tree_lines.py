"""The growing tree of a recording: the end of its text, the tree, and what it is."""

from __future__ import annotations

from specchat.tui.draw.token_tree import Marks, draw, picture_of
from specchat.tui.draw.token_tree.growth import grown_to
from specchat.tui.draw.tree_captions import title_of
from specchat.tui.state.growing_tree import GrowingTree, depths_of
from specchat.tui.text.cells import ScreenLine, last_lines

TEXT_LINES, FEW_TEXT_LINES = 3, 1
MANY_LINES = 12
"""From so many lines on there is room for more than the text's last line."""

NARROWEST, LOWEST = 38, 7
"""With less room the tree is not drawn."""


def growing_tree_lines(tree: GrowingTree, width: int, height: int, marks: Marks) -> list[ScreenLine]:
    """Exactly `height` lines, so that nothing below them moves; none where there is not enough room."""
    if width < NARROWEST or height < LOWEST:
        return []
    lines = TEXT_LINES if height >= MANY_LINES else FEW_TEXT_LINES
    text = last_lines(tree.text, width, lines)
    gap = int(height >= MANY_LINES)
    room = height - 1 - lines - 2 * gap
    grown = _tree_lines(tree, width, room, marks)
    return [
        [(_caption(tree, width), "dim")],
        *_blank(gap),
        *text,
        *_blank(lines - len(text) + gap),
        *grown,
        *_blank(room - len(grown)),
    ]


def _caption(tree: GrowingTree, width: int) -> str:
    """Whose reply this is and what the round kept, as far as the width allows."""
    kept = title_of(tree.round, told=tree.whole)
    longest = f"a recording of {tree.source} · {kept}"
    return longest if len(longest) <= width else f"a recording · {kept}"


def _tree_lines(tree: GrowingTree, width: int, height: int, marks: Marks) -> list[ScreenLine]:
    stage = tree.stage
    drawing = draw(picture_of(tree.round, marks, stage.judged), width, height, "river", marks)
    return drawing.lines if stage.judged else grown_to(drawing, depths_of(tree.round), stage.drafted, marks)


def _blank(lines: int) -> list[ScreenLine]:
    return [[] for _ in range(lines)]
