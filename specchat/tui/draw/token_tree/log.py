"""The layout "log": like a commit graph, one token of the path per row with its probability, and its branches."""

from __future__ import annotations

from specchat.tui.draw.token_tree.marks import Marks
from specchat.tui.draw.token_tree.picture import Node, Picture
from specchat.tui.text.cells import Row, bar, clip, padded, width_of

_BAR_CELLS = 6


def log(picture: Picture, width: int, height: int, marks: Marks) -> list[Row]:
    """The rows of the path, and branches in the remaining rows, those nearest the end of the path first."""
    spine = list(picture.spine)
    shown, hidden = _elide(len(spine), height)
    quota = _quota([len(node.branches) for node in spine], max(0, height - len(shown) - bool(hidden)))
    rows: list[Row] = []
    for index in shown:
        if hidden and index > hidden[-1] and len(rows) == hidden[0]:
            rows.append([(f"{marks.more} {len(hidden)} more on the path", "dim")])
        rows += _spine_rows(picture, spine[index], quota[index], width, marks)
    return rows


def _elide(count: int, height: int) -> tuple[list[int], list[int]]:
    """Which entries of the path are shown and which are not; the middle goes first."""
    if count <= height:
        return list(range(count)), []
    tail = max(1, (height - 1) // 2)
    head = max(0, height - 1 - tail)
    return [*range(head), *range(count - tail, count)], list(range(head, count - tail))


def _quota(branches: list[int], rows: int) -> list[int]:
    """How many branches of each entry get a row: one each from the end backwards, then a second, and so on."""
    quota = [0] * len(branches)
    while rows > 0 and quota != branches:
        for index in reversed(range(len(branches))):
            if rows > 0 and quota[index] < branches[index]:
                quota[index] += 1
                rows -= 1
    return quota


def _spine_rows(picture: Picture, node: Node, quota: int, width: int, marks: Marks) -> list[Row]:
    hidden = sum(picture.branch_size(index) for index in node.branches[quota:])
    note: Row = [(f" +{hidden}", "dim")] if hidden else []
    glyph, role = node.mark(marks)
    head: Row = [(glyph or marks.accepted, role), (" ", ""), *node.words()]
    rows = [_with_bar(head if quota else [*head, *note], node, width, marks)]
    for position, index in enumerate(node.branches[:quota]):
        last = position == quota - 1
        rows.append(_branch_row(picture, index, note if last else [], width, marks))
    return rows


def _branch_row(picture: Picture, index: int, note: Row, width: int, marks: Marks) -> Row:
    """A branch collapsed into one line: its first child's chain, and how many nodes that leaves out."""
    chain, node = [index], picture.nodes[index]
    while node.branches:
        chain.append(node.branches[0])
        node = picture.nodes[node.branches[0]]
    first = picture.nodes[index]
    left_out = picture.branch_size(index) - len(chain)
    words = [run for i in chain for run in picture.nodes[i].words()]
    lead: Row = [(marks.branch + marks.line, "line"), first.mark(marks), (" ", "")]
    tail: Row = ([(f" +{left_out}", "dim")] if left_out else []) + note
    room = width - _bar_room(width) - width_of(lead) - width_of(tail)
    return _with_bar([*lead, *clip(words, max(1, room)), *tail], first, width, marks)


def _bar_room(width: int) -> int:
    if width < 22:
        return 0
    return _BAR_CELLS + 1 + (5 if width >= 30 else 0)


def _with_bar(row: Row, node: Node, width: int, marks: Marks) -> Row:
    room = _bar_room(width)
    if not room or node.probability is None:
        return row
    full = bar(node.probability, _BAR_CELLS)
    if marks.full != "━":
        full = (marks.full * round(node.probability * _BAR_CELLS)).ljust(_BAR_CELLS)
    row = [*padded(row, width - room), (" ", ""), (full, "bar")]
    return [*row, (f" {node.probability:.2f}", "dim")] if width >= 30 else row
