"""What stands under a tree: all about one of its nodes, or earlier rounds in brief, and what the marks mean.

How many rows it takes depends on the room alone, so that nothing jumps while rounds come and go.
"""

from __future__ import annotations

from collections.abc import Sequence

from specchat.engine.protocol.events import RoundDone
from specchat.tui.draw.token_tree.details import details
from specchat.tui.draw.token_tree.marks import Marks, label
from specchat.tui.draw.token_tree.picture import Picture
from specchat.tui.text.cells import Row, clip, width_of

EARLIER = 8
"""At most so many earlier rounds are shown."""

_DETAILS = 5
_LEGEND_FROM_ROWS = 10
_EARLIER_FROM_ROWS = 15
_DETAILS_FROM_ROWS = 6

_USUAL = (("accepted", "accepted"), ("bonus", "bonus"), ("rejected", "rejected"), ("unreached", "unseen"))
_RARE = (("pending", "pending"), ("pruned", "pruned"), ("cut", "cut off"))


def about_rounds(before: Sequence[RoundDone], picture: Picture, width: int, height: int, marks: Marks) -> list[Row]:
    """The rounds before this one, the last of them at the bottom, and the legend."""
    room = _room(height)
    told = [_told(round, width, marks) for round in before[-room:]] if room else []
    head = [_headed("earlier rounds", width)] if room else []
    return [*head, *([] for _ in range(room - len(told))), *told, *_legend(picture, width, height, marks)]


def about_node(
    round: RoundDone, node: int, picture: Picture, width: int, height: int, marks: Marks, *, roomy: bool
) -> list[Row]:
    """All about one node, and the legend. `roomy`: it may take rows from the tree where there are few."""
    if height < _DETAILS_FROM_ROWS:
        return []
    room = _room(height)
    if roomy:
        room = max(room, min(_DETAILS, height // 2 - 1))
    told = details(round, node, width, marks)[: max(1, room)]
    rest: list[Row] = [[] for _ in range(room - len(told))]
    return [_headed("this token", width), *told, *rest, *_legend(picture, width, height, marks)]


def _room(height: int) -> int:
    return min(EARLIER, height // 3) if height >= _EARLIER_FROM_ROWS else 0


def _told(round: RoundDone, width: int, marks: Marks) -> Row:
    """A round in one quiet line: what it wrote, and who wrote it."""
    verdict = round.verdict
    bonus = 0 if verdict.bonus is None else 1
    row: Row = [(marks.accepted * len(verdict.path), "accepted"), (marks.bonus * bonus, "bonus"), ("  ", "")]
    row += [(label(round.tree.texts[node], marks), "drafted") for node in verdict.path]
    return clip([*row, (label(verdict.bonus_text, marks) * bonus, "target")], width)


def _legend(picture: Picture, width: int, height: int, marks: Marks) -> list[Row]:
    """What the marks mean: the usual ones at the bottom, above them the others where they occur."""
    if height < _LEGEND_FROM_ROWS:
        return []
    looks = {node.look for node in picture.nodes}
    rare = [_entry(look, word, marks) for look, word in _RARE if look in looks]
    if any(node.agreed for node in picture.nodes):
        rare.append([(marks.agreement(2), "agreed"), (" drafters agree", "dim")])
    return [_in_line(rare, width), _in_line([_entry(look, word, marks) for look, word in _USUAL], width)]


def _entry(look: str, word: str, marks: Marks) -> Row:
    return [(marks.glyph(look), look), (f" {word}", "dim")]


def _headed(title: str, width: int) -> Row:
    return [(f"─ {title} " + "─" * max(0, width - len(title) - 3), "line")]


def _in_line(entries: list[Row], width: int) -> Row:
    """As many entries as fit beside each other."""
    row: Row = []
    for entry in entries:
        gap = 2 if row else 0
        if width_of(row) + gap + width_of(entry) > width:
            break
        row += [(" " * gap, ""), *entry]
    return row
