"""The rows below a tree: details of one node or the earlier rounds in brief, and the legend of the marks.

The tree stands above them and takes the rows it needs; the earlier rounds take what it leaves.
"""

from __future__ import annotations

from collections.abc import Sequence

from specchat.engine.protocol.events import RoundDone
from specchat.tui.draw.token_tree.details import details
from specchat.tui.draw.token_tree.marks import Marks, label
from specchat.tui.draw.token_tree.picture import Picture
from specchat.tui.text.cells import Row, clip, width_of

EARLIER = 8
"""The most earlier rounds that are shown."""

_DETAILS = 5
_LEGEND = 2
_LEGEND_FROM_ROWS = 10
_EARLIER_FROM_ROWS = 15
_DETAILS_FROM_ROWS = 6

_USUAL = (("accepted", "accepted"), ("bonus", "bonus"), ("rejected", "rejected"), ("unreached", "unseen"))
_RARE = (("pending", "pending"), ("pruned", "pruned"), ("cut", "cut off"))


def legend_height(height: int) -> int:
    """The rows of the legend in a panel of this height."""
    return _LEGEND if height >= _LEGEND_FROM_ROWS else 0


def earlier_rounds_rows(
    before: Sequence[RoundDone], picture: Picture, width: int, height: int, marks: Marks, *, tree: int
) -> list[Row]:
    """The rounds before this one, the last of them at the bottom, and the legend, below a tree of so many rows."""
    room = max(0, min(_room(height), height - legend_height(height) - tree - 1))
    rows = [_round_row(round, width, marks) for round in before[-room:]] if room else []
    head = [_titled_rule("earlier rounds", width)] if room else []
    return [*head, *([] for _ in range(room - len(rows))), *rows, *_legend(picture, width, height, marks)]


def node_rows(
    round: RoundDone, node: int, picture: Picture, width: int, height: int, marks: Marks, *, roomy: bool
) -> list[Row]:
    """The details of one node, and the legend. `roomy`: they may take rows from the tree in a low panel."""
    if height < _DETAILS_FROM_ROWS:
        return []
    room = _room(height)
    if roomy:
        room = max(room, min(_DETAILS, height // 2 - 1))
    rows = details(round, node, width, marks)[: max(1, room)]
    rest: list[Row] = [[] for _ in range(room - len(rows))]
    return [_titled_rule("this token", width), *rows, *rest, *_legend(picture, width, height, marks)]


def _room(height: int) -> int:
    return min(EARLIER, height // 3) if height >= _EARLIER_FROM_ROWS else 0


def _round_row(round: RoundDone, width: int, marks: Marks) -> Row:
    """A round in one row: its marks and its text."""
    verdict = round.verdict
    bonus = 0 if verdict.bonus is None else 1
    row: Row = [(marks.accepted * len(verdict.path), "accepted"), (marks.bonus * bonus, "bonus"), ("  ", "")]
    row += [(label(round.tree.texts[node], marks), "drafted") for node in verdict.path]
    return clip([*row, (label(verdict.bonus_text, marks) * bonus, "target")], width)


def _legend(picture: Picture, width: int, height: int, marks: Marks) -> list[Row]:
    """The legend: the usual marks at the bottom, above them the others that occur in the tree."""
    if not legend_height(height):
        return []
    shown_states = {node.shown_state for node in picture.nodes}
    rare = [_entry(state, word, marks) for state, word in _RARE if state in shown_states]
    if any(node.agreed for node in picture.nodes):
        rare.append([(marks.agreement(2), "agreed"), (" drafters agree", "dim")])
    return [
        _entries_row(rare, width),
        _entries_row([_entry(state, word, marks) for state, word in _USUAL], width),
    ]


def _entry(shown_state: str, word: str, marks: Marks) -> Row:
    return [(marks.glyph(shown_state), shown_state), (f" {word}", "dim")]


def _titled_rule(title: str, width: int) -> Row:
    return [(f"─ {title} " + "─" * max(0, width - len(title) - 3), "line")]


def _entries_row(entries: list[Row], width: int) -> Row:
    """As many entries as fit into one row."""
    row: Row = []
    for entry in entries:
        gap = 2 if row else 0
        if width_of(row) + gap + width_of(entry) > width:
            break
        row += [(" " * gap, ""), *entry]
    return row
