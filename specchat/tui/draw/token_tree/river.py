"""The layout "river": the accepted path runs along the top, and other branches are drawn below their parents.

A path wider than the panel is wrapped into several lines. A branch too wide for its place is drawn below the others,
with the label of its parent in front.
"""

from __future__ import annotations

from dataclasses import dataclass

from specchat.tui.draw.token_tree.marks import Marks
from specchat.tui.draw.token_tree.picture import NO_NODE, Node, Picture, number_in
from specchat.tui.text.cells import Row, clip, cut, width_of


@dataclass(frozen=True)
class _HangingBranches:
    """The branches of one node of the path: the column where they begin, and their rows."""

    parent: Node
    column: int
    rows: list[Row]


def river(picture: Picture, width: int, height: int, marks: Marks) -> list[Row]:
    """All lines of the path, each with as many branches as fit."""
    lines = _wrapped_path(_elided_path(picture.spine, width, height, marks), width)
    spare = max(0, height - len(lines))
    rows: list[Row] = []
    for line in lines:
        top, hanging = _draw_line(picture, line, width, marks, follows=bool(rows))
        hanging = _cropped(hanging, spare, sum(picture.branch_size(i) for n in line for i in n.branches), marks)
        spare -= len(hanging)
        rows += [top, *hanging]
    return rows


def _elided_path(spine: tuple[Node, ...], width: int, height: int, marks: Marks) -> list[Node]:
    """The path; its middle is elided if it has more lines than there are rows."""
    nodes = list(spine)
    left_out = 0
    while len(_wrapped_path(nodes, width)) > height and len(nodes) > 3:
        middle = len(nodes) // 2
        if left_out:
            del nodes[middle]
        left_out += 1 if left_out else 2
        nodes[middle - (left_out > 2) : middle + 1] = [_elision(left_out, marks)]
    return nodes


def _wrapped_path(nodes: list[Node], width: int) -> list[list[Node]]:
    lines: list[list[Node]] = [[]]
    column = 0
    for node in nodes:
        wide = 2 + _label_width(node)
        if lines[-1] and column + wide > width:
            lines.append([])
            column = 1
        lines[-1].append(node)
        column += wide
    return lines


def _elision(left_out: int, marks: Marks) -> Node:
    return Node(NO_NODE, f"{marks.more}{left_out}{marks.more}", "root", "root", None)


def _label_width(node: Node) -> int:
    return width_of(node.words())


def _draw_line(picture: Picture, line: list[Node], width: int, marks: Marks, follows: bool) -> tuple[Row, list[Row]]:
    row: Row = [(marks.river, "river")] if follows else []
    column = len(row)
    hanging_branches: list[_HangingBranches] = []
    for position, node in enumerate(line):
        runs = clip(node.runs(marks), max(1, width - column))
        row += runs
        column += width_of(runs)
        ends = position == len(line) - 1 and node.state == "bonus"
        if node.branches:
            hanging_branches.append(_HangingBranches(node, column, _sibling_rows(picture, node.branches, width, marks)))
        if not ends and column < width:
            row.append((marks.river_fork if node.branches else marks.river, "river"))
        column += 1
    return row, _place_branches(hanging_branches, width, marks)


def _sibling_rows(picture: Picture, branches: tuple[int, ...], room: int, marks: Marks) -> list[Row]:
    """Siblings below each other, each with its descendants to the right."""
    rows: list[Row] = []
    for position, index in enumerate(branches):
        last = position == len(branches) - 1
        first, *rest = _branch_rows(picture, index, room - 1, marks)
        rows.append([(marks.corner if last else marks.branch, "line"), *first])
        rows += [[(" " if last else marks.pipe, "line"), *row] for row in rest]
    return rows


def _branch_rows(picture: Picture, index: int, room: int, marks: Marks) -> list[Row]:
    node = picture.nodes[index]
    head = node.runs(marks)
    wide = width_of(head)
    if wide > room:
        return [[(f"{marks.more}{picture.branch_size(index)}", "dim")]]
    if not node.branches:
        return [head]
    many = len(node.branches) > 1
    first, *rest = _branch_rows(picture, node.branches[0], room - wide - 1, marks)
    rows: list[Row] = [[*head, (marks.fork if many else marks.line, "line"), *first]]
    rows += [[(" " * wide, ""), (marks.pipe if many else " ", "line"), *row] for row in rest]
    if many:
        rows += [[(" " * wide, ""), *row] for row in _sibling_rows(picture, node.branches[1:], room - wide, marks)]
    return rows


def _place_branches(hanging_branches: list[_HangingBranches], width: int, marks: Marks) -> list[Row]:
    """Place branches below the path from right to left, so that no lines cross."""
    floor = [0] * width
    cells: list[list[tuple[int, Row]]] = []
    detached: list[Row] = []
    for branches in reversed(hanging_branches):
        right = branches.column + max(width_of(row) for row in branches.rows)
        if right > width:
            detached = _detached_rows(branches, width, marks) + detached
            continue
        top = max(floor[branches.column : right])
        floor[branches.column : right] = [top + len(branches.rows)] * (right - branches.column)
        for y in range(top + len(branches.rows)):
            while len(cells) <= y:
                cells.append([])
            row: Row = [(marks.pipe, "line")] if y < top else branches.rows[y - top]
            cells[y].append((branches.column, row))
    return [_joined(row) for row in cells] + detached


def _joined(cells: list[tuple[int, Row]]) -> Row:
    row: Row = []
    for column, part in sorted(cells, key=lambda cell: cell[0]):
        row.append((" " * (column - width_of(row)), ""))
        row += part
    return row


def _detached_rows(branches: _HangingBranches, width: int, marks: Marks) -> list[Row]:
    """Branches that do not fit below their parent, with its label in front."""
    name = cut(branches.parent.label, max(1, width // 4))
    blank = " " * width_of([(name, "")])
    return [[(name if y == 0 else blank, "dim"), *row] for y, row in enumerate(branches.rows)]


def _cropped(rows: list[Row], room: int, total: int, marks: Marks) -> list[Row]:
    if len(rows) <= room:
        return rows
    kept = rows[: max(0, room - 1)]
    seen = len({number for row in kept for _, role in row if (number := number_in(role)) is not None})
    return [*kept, [(f"{marks.more} {total - seen} more", "dim")]][:room]
