"""The tree as a river: the accepted path runs straight along the top, what was not taken hangs below its parent.

A path longer than the room is wide flows on in the next reach, a row further down, as text does.
A branch too wide to hang where it belongs is told below instead, with its parent's name in front.
"""

from __future__ import annotations

from dataclasses import dataclass

from specchat.tui.draw.token_tree.marks import Marks
from specchat.tui.draw.token_tree.picture import NOBODY, Node, Picture, number_in
from specchat.tui.text.cells import Row, clip, cut, width_of


@dataclass(frozen=True)
class _Hang:
    """Branches of one entry of the path: where they hang, and their rows."""

    parent: Node
    column: int
    rows: list[Row]


def river(picture: Picture, width: int, height: int, marks: Marks) -> list[Row]:
    """Every reach of the path, then as many branches as there is room for."""
    reaches = _reaches(_fitting(picture.spine, width, height, marks), width)
    spare = max(0, height - len(reaches))
    rows: list[Row] = []
    for reach in reaches:
        top, hanging = _draw_reach(picture, reach, width, marks, follows=bool(rows))
        hanging = _cropped(hanging, spare, sum(picture.below(i) for n in reach for i in n.branches), marks)
        spare -= len(hanging)
        rows += [top, *hanging]
    return rows


def _fitting(spine: tuple[Node, ...], width: int, height: int, marks: Marks) -> list[Node]:
    """The path, its middle elided if even the bare path would need more reaches than there are rows."""
    nodes = list(spine)
    left_out = 0
    while len(_reaches(nodes, width)) > height and len(nodes) > 3:
        middle = len(nodes) // 2
        if left_out:
            del nodes[middle]
        left_out += 1 if left_out else 2
        nodes[middle - (left_out > 2) : middle + 1] = [_elision(left_out, marks)]
    return nodes


def _reaches(nodes: list[Node], width: int) -> list[list[Node]]:
    reaches: list[list[Node]] = [[]]
    column = 0
    for node in nodes:
        wide = 2 + _label_width(node)
        if reaches[-1] and column + wide > width:
            reaches.append([])
            column = 1
        reaches[-1].append(node)
        column += wide
    return reaches


def _elision(left_out: int, marks: Marks) -> Node:
    return Node(NOBODY, f"{marks.more}{left_out}{marks.more}", "root", "root", None)


def _label_width(node: Node) -> int:
    return width_of(node.words())


def _draw_reach(picture: Picture, reach: list[Node], width: int, marks: Marks, follows: bool) -> tuple[Row, list[Row]]:
    row: Row = [(marks.river, "river")] if follows else []
    column = len(row)
    hangs: list[_Hang] = []
    for position, node in enumerate(reach):
        runs = clip(node.runs(marks), max(1, width - column))
        row += runs
        column += width_of(runs)
        ends = position == len(reach) - 1 and node.state == "bonus"
        if node.branches:
            hangs.append(_Hang(node, column, _bough(picture, node.branches, width, marks)))
        if not ends and column < width:
            row.append((marks.river_fork if node.branches else marks.river, "river"))
        column += 1
    return row, _hang(hangs, width, marks)


def _bough(picture: Picture, branches: tuple[int, ...], room: int, marks: Marks) -> list[Row]:
    """Siblings below each other, each with what grows from it to its right."""
    rows: list[Row] = []
    for position, index in enumerate(branches):
        last = position == len(branches) - 1
        first, *rest = _twig(picture, index, room - 1, marks)
        rows.append([(marks.corner if last else marks.branch, "line"), *first])
        rows += [[(" " if last else marks.pipe, "line"), *row] for row in rest]
    return rows


def _twig(picture: Picture, index: int, room: int, marks: Marks) -> list[Row]:
    node = picture.nodes[index]
    head = node.runs(marks)
    wide = width_of(head)
    if wide > room:
        return [[(f"{marks.more}{picture.below(index)}", "dim")]]
    if not node.branches:
        return [head]
    many = len(node.branches) > 1
    first, *rest = _twig(picture, node.branches[0], room - wide - 1, marks)
    rows: list[Row] = [[*head, (marks.fork if many else marks.line, "line"), *first]]
    rows += [[(" " * wide, ""), (marks.pipe if many else " ", "line"), *row] for row in rest]
    if many:
        rows += [[(" " * wide, ""), *row] for row in _bough(picture, node.branches[1:], room - wide, marks)]
    return rows


def _hang(hangs: list[_Hang], width: int, marks: Marks) -> list[Row]:
    """Pack branches under the path, right to left, so that no line crosses another."""
    floor = [0] * width
    cells: list[list[tuple[int, Row]]] = []
    told: list[Row] = []
    for hang in reversed(hangs):
        right = hang.column + max(width_of(row) for row in hang.rows)
        if right > width:
            told = _told(hang, width, marks) + told
            continue
        top = max(floor[hang.column : right])
        floor[hang.column : right] = [top + len(hang.rows)] * (right - hang.column)
        for y in range(top + len(hang.rows)):
            while len(cells) <= y:
                cells.append([])
            row: Row = [(marks.pipe, "line")] if y < top else hang.rows[y - top]
            cells[y].append((hang.column, row))
    return [_joined(row) for row in cells] + told


def _joined(cells: list[tuple[int, Row]]) -> Row:
    row: Row = []
    for column, part in sorted(cells, key=lambda cell: cell[0]):
        row.append((" " * (column - width_of(row)), ""))
        row += part
    return row


def _told(hang: _Hang, width: int, marks: Marks) -> list[Row]:
    """Branches away from their parent: its name in front, since no line leads there."""
    name = cut(hang.parent.label, max(1, width // 4))
    blank = " " * width_of([(name, "")])
    return [[(name if y == 0 else blank, "dim"), *row] for y, row in enumerate(hang.rows)]


def _cropped(rows: list[Row], room: int, total: int, marks: Marks) -> list[Row]:
    if len(rows) <= room:
        return rows
    kept = rows[: max(0, room - 1)]
    seen = len({number for row in kept for _, role in row if (number := number_in(role)) is not None})
    return [*kept, [(f"{marks.more} {total - seen} more", "dim")]][:room]
