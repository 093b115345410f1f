"""The lines between a tree and the ribbon of its reply (details of one node, or the earlier rounds), and the legend."""

from __future__ import annotations

from collections.abc import Sequence

from specchat.engine.protocol.events import RoundDone
from specchat.tui.draw.token_tree.details import details
from specchat.tui.draw.token_tree.marks import Marks, label
from specchat.tui.draw.token_tree.picture import Picture
from specchat.tui.text.cells import ScreenLine, clip, titled_rule, width_of

EARLIER = 8
"""The most earlier rounds that are shown."""

_DETAILS = 5
_LEGEND = 2
_LEGEND_FROM_LINES = 10
_EARLIER_FROM_LINES = 15
_DETAILS_FROM_LINES = 6

_USUAL = (("accepted", "kept"), ("bonus", "target's own"), ("rejected", "rejected"), ("unreached", "not reached"))
_RARE = (("pending", "not judged yet"), ("pruned", "pruned"), ("cut", "cut off"))


def _legend_height(height: int) -> int:
    """The lines of the legend in a panel of this height."""
    return _LEGEND if height >= _LEGEND_FROM_LINES else 0


def earlier_rounds_lines(
    before: Sequence[RoundDone], width: int, height: int, marks: Marks, *, room: int
) -> list[ScreenLine]:
    """The rounds before this one, the last of them at the bottom, in a panel of this height with so many free lines."""
    room = min(room, EARLIER, len(before)) if height >= _EARLIER_FROM_LINES else 0
    if room <= 0:
        return []
    return [titled_rule("earlier rounds", width), *(_round_line(round, width, marks) for round in before[-room:])]


def node_lines(round: RoundDone, node: int, width: int, height: int, marks: Marks, *, roomy: bool) -> list[ScreenLine]:
    """The details of one node. `roomy`: they may take lines from the tree in a low panel."""
    if height < _DETAILS_FROM_LINES:
        return []
    room = _DETAILS if height >= _EARLIER_FROM_LINES else min(_DETAILS, height // 2 - 1) if roomy else 1
    lines = details(round, node, width, marks)[:room]
    return [titled_rule("this token", width), *lines, *([] for _ in range(room - len(lines)))]


def legend_lines(picture: Picture, width: int, height: int, marks: Marks) -> list[ScreenLine]:
    """What the marks mean: the usual ones, then others that occur in the tree, as many as fit."""
    shown_states = {node.shown_state for node in picture.nodes}
    entries = [_entry(state, word, marks) for state, word in _USUAL]
    entries += [_entry(state, word, marks) for state, word in _RARE if state in shown_states]
    if any(node.agreed for node in picture.nodes):
        entries.append([(marks.agreement(2), "agreed"), (" two drafters agree", "dim")])
    lines: list[ScreenLine] = [[]]
    for entry in entries:
        gap: ScreenLine = [("  ", "")] if lines[-1] else []
        if width_of([*lines[-1], *gap, *entry]) <= width:
            lines[-1] += [*gap, *entry]
        elif lines[-1]:
            lines.append(entry)
    return [clip(line, width) for line in [*lines, [], []][: _legend_height(height)]]


def _round_line(round: RoundDone, width: int, marks: Marks) -> ScreenLine:
    """A round in one line: its marks and its text."""
    verdict = round.verdict
    bonus = 0 if verdict.bonus is None else 1
    line: ScreenLine = [(marks.accepted * len(verdict.path), "accepted"), (marks.bonus * bonus, "bonus"), ("  ", "")]
    line += [(label(round.tree.texts[node], marks), "drafted") for node in verdict.path]
    return clip([*line, (label(verdict.bonus_text, marks) * bonus, "target")], width)


def _entry(shown_state: str, word: str, marks: Marks) -> ScreenLine:
    return [(marks.glyph(shown_state), shown_state), (f" {word}", "dim")]
