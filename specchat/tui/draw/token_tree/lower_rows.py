"""The rows between a tree and the ribbon of its reply (details of one node, or the earlier rounds), and the legend."""

from __future__ import annotations

from collections.abc import Sequence

from specchat.engine.protocol.events import RoundDone
from specchat.tui.draw.token_tree.details import details
from specchat.tui.draw.token_tree.marks import Marks, label
from specchat.tui.draw.token_tree.picture import Picture
from specchat.tui.text.cells import Row, clip, titled_rule, width_of

EARLIER = 8
"""The most earlier rounds that are shown."""

_DETAILS = 5
_LEGEND = 2
_LEGEND_FROM_ROWS = 10
_EARLIER_FROM_ROWS = 15
_DETAILS_FROM_ROWS = 6

_USUAL = (("accepted", "kept"), ("bonus", "target's own"), ("rejected", "rejected"), ("unreached", "not reached"))
_RARE = (("pending", "not judged yet"), ("pruned", "pruned"), ("cut", "cut off"))


def _legend_height(height: int) -> int:
    """The rows of the legend in a panel of this height."""
    return _LEGEND if height >= _LEGEND_FROM_ROWS else 0


def earlier_rounds_rows(before: Sequence[RoundDone], width: int, height: int, marks: Marks, *, room: int) -> list[Row]:
    """The rounds before this one, the last of them at the bottom, in a panel of this height with so many free rows."""
    room = min(room, EARLIER, len(before)) if height >= _EARLIER_FROM_ROWS else 0
    if room <= 0:
        return []
    return [titled_rule("earlier rounds", width), *(_round_row(round, width, marks) for round in before[-room:])]


def node_rows(round: RoundDone, node: int, width: int, height: int, marks: Marks, *, roomy: bool) -> list[Row]:
    """The details of one node. `roomy`: they may take rows from the tree in a low panel."""
    if height < _DETAILS_FROM_ROWS:
        return []
    room = _DETAILS if height >= _EARLIER_FROM_ROWS else min(_DETAILS, height // 2 - 1) if roomy else 1
    rows = details(round, node, width, marks)[:room]
    return [titled_rule("this token", width), *rows, *([] for _ in range(room - len(rows)))]


def legend_rows(picture: Picture, width: int, height: int, marks: Marks) -> list[Row]:
    """What the marks mean: the usual ones, then others that occur in the tree, as many as fit."""
    shown_states = {node.shown_state for node in picture.nodes}
    entries = [_entry(state, word, marks) for state, word in _USUAL]
    entries += [_entry(state, word, marks) for state, word in _RARE if state in shown_states]
    if any(node.agreed for node in picture.nodes):
        entries.append([(marks.agreement(2), "agreed"), (" two drafters agree", "dim")])
    rows: list[Row] = [[]]
    for entry in entries:
        gap: Row = [("  ", "")] if rows[-1] else []
        if width_of([*rows[-1], *gap, *entry]) <= width:
            rows[-1] += [*gap, *entry]
        elif rows[-1]:
            rows.append(entry)
    return [clip(row, width) for row in [*rows, [], []][: _legend_height(height)]]


def _round_row(round: RoundDone, width: int, marks: Marks) -> Row:
    """A round in one row: its marks and its text."""
    verdict = round.verdict
    bonus = 0 if verdict.bonus is None else 1
    row: Row = [(marks.accepted * len(verdict.path), "accepted"), (marks.bonus * bonus, "bonus"), ("  ", "")]
    row += [(label(round.tree.texts[node], marks), "drafted") for node in verdict.path]
    return clip([*row, (label(verdict.bonus_text, marks) * bonus, "target")], width)


def _entry(shown_state: str, word: str, marks: Marks) -> Row:
    return [(marks.glyph(shown_state), shown_state), (f" {word}", "dim")]
