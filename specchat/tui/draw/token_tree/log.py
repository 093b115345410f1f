"""The layout "log": like a commit graph, one token of the path per line with its probability, and its branches."""

from __future__ import annotations

from specchat.tui.draw.token_tree.marks import Marks
from specchat.tui.draw.token_tree.picture import Node, Picture
from specchat.tui.text.cells import ScreenLine, bar, clip, padded, width_of

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


def _spine_lines(picture: Picture, node: Node, quota: int, width: int, marks: Marks) -> list[ScreenLine]:
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


def _with_bar(line: ScreenLine, node: Node, width: int, marks: Marks) -> ScreenLine:
    room = _bar_room(width)
    if not room or node.probability is None:
        return line
    full = bar(node.probability, _BAR_CELLS)
    if marks.full != "━":
        full = (marks.full * round(node.probability * _BAR_CELLS)).ljust(_BAR_CELLS)
    line = [*padded(line, width - room), (" ", ""), (full, "bar")]
    return [*line, (f" {node.probability:.2f}", "dim")] if width >= 30 else line
