"""The layout "river": the accepted path is one straight line, and other branches are drawn below their parents.

A path wider than the panel scrolls sideways: its end is in view, or the node that is selected. Branches give way
first: their labels are cut shorter where they do not fit, and then the ends of their chains are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from specchat.tui.text.cells import ScreenLine, clip, width_of
from specchat.tui.tree.picture import NO_NODE, TOKEN_CELLS, WHOLE_CELLS, DrawnNode, Marks, Picture, nodes_in

_BRANCH_CELLS = (WHOLE_CELLS, TOKEN_CELLS, 6, 4)
"""How many cells a label below the path may take: the first with which everything fits, else the first of those with
the fewest lines.
"""

_NARROWEST = 4
"""Cells that branches need below their parent: a corner and a count."""

_UNLIMITED = 10**6


@dataclass(frozen=True)
class _HangingBranches:
    """The branches of one node of the path: the column where they begin, and their lines."""

    column: int
    lines: list[ScreenLine]

    @property
    def right(self) -> int:
        return self.column + max(width_of(line) for line in self.lines)


def river(picture: Picture, width: int, height: int, marks: Marks) -> list[ScreenLine]:
    """The path in one line, and as many branches below it as fit."""
    spine = [node.cut_to(WHOLE_CELLS, marks) for node in picture.spine]
    if _width_needed(spine) > width:
        spine = [node.cut_to(TOKEN_CELLS, marks) for node in picture.spine]
    path = _in_view(spine, width, picture, marks)
    top, columns = _path_line(path, width, marks)
    parents = [(node, column) for node, column in columns if node.branches and width - column >= _NARROWEST]
    below: list[ScreenLine] = []
    pictures = [
        replace(picture, nodes=tuple(node.cut_to(cells, marks) for node in picture.nodes))
        for cells in (_BRANCH_CELLS if parents else ())
    ]
    for first in range(len(pictures)):
        hanging = [_hang(pictures[first:], node.branches, column, width, marks) for node, column in parents]
        placed = _place_branches(hanging, width, marks)
        if first == 0 or len(placed) < len(below):
            below = placed
        if len(below) < height:
            break
    total = sum(picture.branch_size(index) for node, _ in parents for index in node.branches)
    return [top, *_cropped(below, height - 1, total, marks)]


def _width_needed(path: Sequence[DrawnNode]) -> int:
    """Cells from the root to the end of the path, the narrowest branches included."""
    column = needed = 0
    for node in path:
        column += bool(node.state != "root") + width_of(node.words())
        needed = max(needed, column + (_NARROWEST if node.branches else 0))
        column += 1
    return needed


def _in_view(spine: list[DrawnNode], width: int, picture: Picture, marks: Marks) -> list[DrawnNode]:
    """The part of the path that fits, with counts in place of what is left out before and after it."""
    if _width_needed(spine) <= width:
        return spine
    begin, end = len(spine) - 1, len(spine)
    while begin > 0 and _width_needed(_elided(spine, begin - 1, end, marks)) <= width:
        begin -= 1
    at = _selected_position(spine, picture)
    if at < begin:
        begin, end = max(0, at - 1), at + 1
        while end < len(spine) and _width_needed(_elided(spine, begin, end + 1, marks)) <= width:
            end += 1
    return _elided(spine, begin, end, marks)


def _selected_position(spine: list[DrawnNode], picture: Picture) -> int:
    """The position on the path of the selected node, or of the node that it hangs from; without one, the last."""
    if not any(node.accent for node in (*picture.nodes, *spine)):
        return len(spine) - 1
    return max((at for at, node in enumerate(spine) if node.accent), default=0)


def _elided(spine: list[DrawnNode], begin: int, end: int, marks: Marks) -> list[DrawnNode]:
    before = [_elision(begin, marks)] if begin else []
    after = [_elision(len(spine) - end, marks)] if end < len(spine) else []
    return [*before, *spine[begin:end], *after]


def _elision(left_out: int, marks: Marks) -> DrawnNode:
    return DrawnNode(NO_NODE, f"{marks.more}{left_out}{marks.more}", "root", "root", None)


def _path_line(path: Sequence[DrawnNode], width: int, marks: Marks) -> tuple[ScreenLine, list[tuple[DrawnNode, int]]]:
    """The line of the path, and the column behind each of its nodes."""
    line: ScreenLine = []
    columns: list[tuple[DrawnNode, int]] = []
    for position, node in enumerate(path):
        line = clip([*line, *node.runs(marks)], width)
        columns.append((node, column := width_of(line)))
        ends = position == len(path) - 1 and node.state == "bonus"
        if not ends and column < width:
            line.append((marks.river_fork if node.branches else marks.river, "river"))
    return line, columns


def _hang(
    pictures: Sequence[Picture], branches: tuple[int, ...], column: int, width: int, marks: Marks
) -> _HangingBranches:
    """The branches of a node at this column, by the first of these pictures that is not too wide."""
    for picture in pictures[:-1]:
        hanging = _HangingBranches(column, _sibling_lines(picture, branches, _UNLIMITED, marks))
        if hanging.right <= width:
            return hanging
    return _HangingBranches(column, _sibling_lines(pictures[-1], branches, width - column, marks))


def _sibling_lines(picture: Picture, branches: tuple[int, ...], room: int, marks: Marks) -> list[ScreenLine]:
    """Siblings below each other, each with its descendants to the right."""
    lines: list[ScreenLine] = []
    for position, index in enumerate(branches):
        last = position == len(branches) - 1
        first, *rest = _branch_lines(picture, index, room - 1, marks)
        lines.append([(marks.corner if last else marks.branch, "line"), *first])
        lines += [[(" " if last else marks.pipe, "line"), *line] for line in rest]
    return lines


def _branch_lines(picture: Picture, index: int, room: int, marks: Marks) -> list[ScreenLine]:
    """A node and its descendants to the right of it; what is too wide is counted."""
    node = picture.nodes[index]
    head = node.runs(marks)
    wide = width_of(head)
    counted = f"{marks.more}{picture.branch_size(index)}"
    if wide > room or (node.branches and room - wide < _NARROWEST):
        return [[(counted, "dim")]] if wide > room else [clip([*head, (counted[:1], "dim")], room)]
    if not node.branches:
        return [head]
    many = len(node.branches) > 1
    first, *rest = _branch_lines(picture, node.branches[0], room - wide - 1, marks)
    lines: list[ScreenLine] = [[*head, (marks.fork if many else marks.line, "line"), *first]]
    lines += [[(" " * wide, ""), (marks.pipe if many else " ", "line"), *line] for line in rest]
    if many:
        lines += [[(" " * wide, ""), *line] for line in _sibling_lines(picture, node.branches[1:], room - wide, marks)]
    return lines


def _place_branches(hanging_branches: list[_HangingBranches], width: int, marks: Marks) -> list[ScreenLine]:
    """Place branches below the path from right to left, so that no lines cross."""
    floor = [0] * width
    cells: dict[int, list[tuple[int, ScreenLine]]] = {}
    for branches in reversed(hanging_branches):
        span = slice(branches.column, min(width, branches.right))
        top = max(floor[span])
        floor[span] = [top + len(branches.lines)] * (span.stop - span.start)
        for y, line in enumerate([*([(marks.pipe, "line")] for _ in range(top)), *branches.lines]):
            cells.setdefault(y, []).append((branches.column, line))
    return [_joined(cells[y]) for y in range(len(cells))]


def _joined(cells: list[tuple[int, ScreenLine]]) -> ScreenLine:
    line: ScreenLine = []
    for column, part in sorted(cells):
        line += [(" " * (column - width_of(line)), ""), *part]
    return line


def _cropped(lines: list[ScreenLine], room: int, total: int, marks: Marks) -> list[ScreenLine]:
    if len(lines) <= room:
        return lines
    kept = lines[: max(0, room - 1)]
    return [*kept, [(f"{marks.more} {total - nodes_in(kept)} more", "dim")]][:room]
