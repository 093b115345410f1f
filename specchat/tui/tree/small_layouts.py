"""The layouts "log", "map" and "strip": one token of the path per line, one mark per node, one line for all.

A node of the map is drawn as its mark and, where there is room, a cell shaded by probability: one column per depth, the
accepted path at the top. Nodes that do not fit are counted.
"""

from __future__ import annotations

import math

from specchat.tui.text.cells import Run, ScreenLine, clip, padded, width_of
from specchat.tui.tree.picture import DrawnNode, Marks, Picture, nodes_in

_BAR_CELLS = 6


def log(picture: Picture, width: int, height: int, marks: Marks) -> list[ScreenLine]:
    """The lines of the path, and branches in the remaining lines, those nearest the end of the path first."""
    spine = list(picture.spine)
    shown, hidden = _elide(len(spine), height)
    quota = _quota([len(node.branches) for node in spine], max(0, height - len(shown) - bool(hidden)))
    lines: list[ScreenLine] = []
    for index in shown:
        if hidden and index > hidden[-1] and len(lines) == hidden[0]:
            lines.append([(f"{marks.more} {len(hidden)} more on the path", "dim")])
        lines += _spine_lines(picture, spine[index], quota[index], width, marks)
    return lines


def _elide(count: int, height: int) -> tuple[list[int], list[int]]:
    """Which entries of the path are shown and which are not; the middle goes first."""
    if count <= height:
        return list(range(count)), []
    tail = max(1, (height - 1) // 2)
    head = max(0, height - 1 - tail)
    return [*range(head), *range(count - tail, count)], list(range(head, count - tail))


def _quota(branches: list[int], lines: int) -> list[int]:
    """How many branches of each entry get a line: one each from the end backwards, then a second, and so on."""
    quota = [0] * len(branches)
    while lines > 0 and quota != branches:
        for index in reversed(range(len(branches))):
            if lines > 0 and quota[index] < branches[index]:
                quota[index] += 1
                lines -= 1
    return quota


def _spine_lines(picture: Picture, node: DrawnNode, quota: int, width: int, marks: Marks) -> list[ScreenLine]:
    hidden = sum(picture.branch_size(index) for index in node.branches[quota:])
    note: ScreenLine = [(f" +{hidden}", "dim")] if hidden else []
    glyph, role = node.mark(marks)
    head: ScreenLine = [(glyph or marks.accepted, role), (" ", ""), *node.words()]
    lines = [_with_bar(head if quota else [*head, *note], node, width, marks)]
    for position, index in enumerate(node.branches[:quota]):
        last = position == quota - 1
        lines.append(_branch_line(picture, index, note if last else [], width, marks))
    return lines


def _branch_line(picture: Picture, index: int, note: ScreenLine, width: int, marks: Marks) -> ScreenLine:
    """A branch collapsed into one line: its first child's chain, and how many nodes that leaves out."""
    chain, node = [index], picture.nodes[index]
    while node.branches:
        chain.append(node.branches[0])
        node = picture.nodes[node.branches[0]]
    first = picture.nodes[index]
    left_out = picture.branch_size(index) - len(chain)
    words = [run for i in chain for run in picture.nodes[i].words()]
    lead: ScreenLine = [(marks.branch + marks.line, "line"), first.mark(marks), (" ", "")]
    tail: ScreenLine = ([(f" +{left_out}", "dim")] if left_out else []) + note
    room = width - _bar_room(width) - width_of(lead) - width_of(tail)
    return _with_bar([*lead, *clip(words, max(1, room)), *tail], first, width, marks)


def _bar_room(width: int) -> int:
    if width < 22:
        return 0
    return _BAR_CELLS + 1 + (5 if width >= 30 else 0)


def _with_bar(line: ScreenLine, node: DrawnNode, width: int, marks: Marks) -> ScreenLine:
    room = _bar_room(width)
    if not room or node.probability is None:
        return line
    line = [*padded(line, width - room), (" ", ""), (marks.bar(node.probability, _BAR_CELLS), "bar")]
    return [*line, (f" {node.probability:.2f}", "dim")] if width >= 30 else line


_HEAD_FROM_LINES = 4
"""Below so many lines only the map itself is drawn: no text of the path, no depths."""


_Depth = tuple[DrawnNode | None, list[DrawnNode]]
"""The nodes of one depth: the one on the path, and the others."""


def tree_map(picture: Picture, width: int, height: int, marks: Marks) -> list[ScreenLine]:
    """The path's text, the depths, then the map."""
    heads = 2 if height >= _HEAD_FROM_LINES else 0
    spine = {node.depth: node for node in picture.spine[1:]}
    others: dict[int, list[DrawnNode]] = {}
    for node in picture.nodes[1:]:
        if node.state not in ("accepted", "forbidden"):
            others.setdefault(node.depth, []).append(node)
    deepest = max([*spine, *others], default=0)
    nodes: list[_Depth] = [
        (spine.get(depth), sorted(others.get(depth, []), key=lambda node: -(node.likelihood or 0.0)))
        for depth in range(1, deepest + 1)
    ]
    total = sum(len(others) + (spine is not None) for spine, others in nodes)
    lines, cells = _grid(nodes, width, max(1, height - heads), marks)
    if nodes_in(lines) < total:
        lines, cells = _grid(nodes, width, max(1, height - heads - 1), marks)
        lines.append([(f"{marks.more} {total - nodes_in(lines)} more", "dim")])
    if not heads:
        return lines
    return [[run for node in picture.spine for run in node.words()], _depths(cells, width), *lines]


def _grid(nodes: list[_Depth], width: int, height: int, marks: Marks) -> tuple[list[ScreenLine], list[int]]:
    """The lines, and how many cells each depth takes."""
    breadths, cell, gap = _fitted([len(others) for _, others in nodes], width, height)
    lines: list[ScreenLine] = [[] for _ in range(height)]
    for index, breadth in enumerate(breadths):
        spine, others = nodes[index]
        flows = index + 1 < len(breadths) and nodes[index + 1][0] is not None
        for y in range(height):
            # The node of the path is in the first line, the others are below it, column by column.
            shown = others[y - 1 : breadth * (height - 1) : height - 1] if y else [spine] if spine else []
            line = [run for node in shown for run in _cell(node, cell, marks)]
            filler: Run = (marks.river, "river") if flows and y == 0 else (" ", "")
            lines[y] += [*line, (filler[0] * (breadth * cell + gap - width_of(line)), filler[1])]
    widths = [breadth * cell + gap for breadth in breadths]
    return [line for line in lines if any(text.strip() for text, _ in line)], widths


def _fitted(counts: list[int], width: int, height: int) -> tuple[list[int], int, int]:
    """How many columns each depth has, and the cells of one and between depths, as wide as the width allows.

    `counts` are the nodes beside the path. The deepest are left out if they do not fit.
    """
    breadths = [max(1, math.ceil(count / max(1, height - 1))) for count in counts]
    for cell, gap in ((2, 2), (2, 1), (1, 1), (1, 0)):
        if sum(breadths) * cell + len(counts) * gap <= width:
            break
    while sum(breadths) > width and max(breadths) > 1:
        breadths[breadths.index(max(breadths))] -= 1
    return breadths[: width // (cell + gap) if sum(breadths) > width else len(breadths)], cell, gap


def _cell(node: DrawnNode, cell: int, marks: Marks) -> ScreenLine:
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
    for shown_state in ("rejected", "unreached", "pruned", "cut", "pending", "forbidden"):
        if count := sum(node.shown_state == shown_state for node in beside):
            role = "crossed" if shown_state in ("rejected", "pruned", "cut") else shown_state
            line.append((f"  {marks.glyph(shown_state)}{count}", role))
    return line
