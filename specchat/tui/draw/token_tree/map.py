"""The layout "map", for many nodes: one column per depth, the accepted path at the top, then by probability.

A node is drawn as its mark and, where there is room, a cell shaded by probability. Nodes that do not fit are counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from specchat.tui.draw.token_tree.marks import Marks
from specchat.tui.draw.token_tree.picture import Node, Picture, number_in
from specchat.tui.text.cells import Run, ScreenLine, width_of

_HEAD_FROM_LINES = 4
"""Below so many lines only the map itself is drawn: no text of the path, no depths."""


@dataclass(frozen=True)
class _Column:
    """The nodes of one depth: the one on the path, the others, and how many columns these take."""

    spine: Node | None
    others: list[Node]
    breadth: int


def tree_map(picture: Picture, width: int, height: int, marks: Marks) -> list[ScreenLine]:
    """The path's text, the depths, then the map."""
    heads = 2 if height >= _HEAD_FROM_LINES else 0
    nodes = _by_depth(picture)
    total = sum(len(others) + (spine is not None) for spine, others in nodes)
    lines, cells = _grid(nodes, width, height - heads, marks, 0)
    shown = _count(lines)
    if shown < total:
        lines, cells = _grid(nodes, width, height - heads, marks, 1)
        lines.append([(f"{marks.more} {total - _count(lines)} more", "dim")])
    if not heads:
        return lines
    return [[run for node in picture.spine for run in node.words()], _depths(cells, width), *lines]


def _by_depth(picture: Picture) -> list[tuple[Node | None, list[Node]]]:
    """For every depth from 1 on: the node of the path, and the others, the likeliest first."""
    spine = {node.depth: node for node in picture.spine[1:]}
    others: dict[int, list[Node]] = {}
    for node in picture.nodes[1:]:
        if node.state != "accepted":
            others.setdefault(node.depth, []).append(node)
    deepest = max([*spine, *others], default=0)
    return [
        (spine.get(depth), sorted(others.get(depth, []), key=lambda node: -(node.likelihood or 0.0)))
        for depth in range(1, deepest + 1)
    ]


def _grid(
    nodes: list[tuple[Node | None, list[Node]]], width: int, height: int, marks: Marks, reserved: int
) -> tuple[list[ScreenLine], list[int]]:
    """The lines, and how many cells each depth takes; `reserved` lines are left free below."""
    height = max(1, height - reserved)
    columns, cell, gap = _fitted(nodes, width, height)
    lines: list[ScreenLine] = [[] for _ in range(height)]
    widths: list[int] = []
    for index, column in enumerate(columns):
        taken = column.breadth * cell + gap
        widths.append(taken)
        flows = index + 1 < len(columns) and columns[index + 1].spine is not None
        for y in range(height):
            line = _cells(column, y, height, cell, marks)
            filler: Run = (marks.river, "river") if flows and y == 0 else (" ", "")
            lines[y] += [*line, (filler[0] * (taken - width_of(line)), filler[1])]
    return [line for line in lines if any(text.strip() for text, _ in line)], widths


def _fitted(nodes: list[tuple[Node | None, list[Node]]], width: int, height: int) -> tuple[list[_Column], int, int]:
    """Columns for all depths, as wide as the width allows; the deepest are left out if they do not fit."""
    room = max(1, height - 1)
    breadths = [max(1, math.ceil(len(others) / room)) for _, others in nodes]
    for cell, gap in ((2, 2), (2, 1), (1, 1), (1, 0)):
        if sum(breadths) * cell + len(nodes) * gap <= width:
            break
    while sum(breadths) > width and max(breadths) > 1:
        breadths[breadths.index(max(breadths))] -= 1
    columns = [_Column(spine, others, breadth) for (spine, others), breadth in zip(nodes, breadths, strict=True)]
    return columns[: width // (cell + gap) if sum(breadths) > width else len(columns)], cell, gap


def _cells(column: _Column, y: int, height: int, cell: int, marks: Marks) -> ScreenLine:
    """Line `y` of a depth: the node of the path in the first line, the others below it, column by column."""
    if y == 0:
        return _cell(column.spine, cell, marks) if column.spine else []
    line: ScreenLine = []
    for x in range(column.breadth):
        place = x * (height - 1) + y - 1
        if place < len(column.others):
            line += _cell(column.others[place], cell, marks)
    return line


def _cell(node: Node, cell: int, marks: Marks) -> ScreenLine:
    glyph, role = node.mark(marks)
    if node.accent:
        role = f"{node.accent}#{node.number}"
    return [(glyph, role), (marks.shade(node.likelihood), f"bar#{node.number}")][:cell]


def _depths(widths: list[int], width: int) -> ScreenLine:
    """The numbers of the depths above their columns, as far as they fit."""
    text, at = "", 0
    for depth, taken in enumerate(widths, 1):
        if len(text) <= at:
            text = text.ljust(at) + str(depth) + " "
        at += taken
    return [(text[:width].rstrip(), "dim")]


def _count(lines: list[ScreenLine]) -> int:
    return len({number for line in lines for _, role in line if (number := number_in(role)) is not None})
