"""The lines around a drawn tree: captions, details of a node, earlier rounds, the legend, the ribbon of all rounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from zlib import crc32

from specchat.engine.protocol.events import RoundDone
from specchat.engine.protocol.round_nodes import lens_at, proposers_of
from specchat.engine.protocol.text import visible
from specchat.tui.state.reply_figures import Figures
from specchat.tui.text import numbers
from specchat.tui.text.cells import ScreenLine, clip, spark, titled_rule, width_of
from specchat.tui.tree.node_details import details, parent_of
from specchat.tui.tree.picture import FORCED_BY, TOKEN_CELLS, WHOLE_CELLS, Marks, Picture, label


def title_of(round: RoundDone | None, *, told: bool = True) -> str:
    """`kept 3 of 18 guesses`, or `plain · 1 token`; `told`: whether the verdict is on the screen."""
    if round is None:
        return "tree"
    drafted = len(round.tree.tokens) - 1
    if drafted <= 0:
        return "plain · 1 token"
    guesses = numbers.guesses(drafted)
    return f"kept {len(round.verdict.path)} of {guesses}" if told else guesses


def best_round(rounds: Sequence[RoundDone]) -> int | None:
    """The place of the round that kept the most guesses, of equal ones that with the largest tree; None: none did."""
    merits = [(len(round.verdict.path), len(round.tree.tokens)) for round in rounds if round.verdict.path]
    best = max(merits, default=None)
    return next((at for at, one in enumerate(rounds) if (len(one.verdict.path), len(one.tree.tokens)) == best), None)


def summary_of(figures: Figures | None, *, ratio: bool = True) -> str:
    """`τ 4.2 · 2.7×`, the ratio in as many digits as the line below the reply has."""
    if figures is None or not figures.rounds:
        return ""
    parts = [f"τ {figures.acceptance_length:.1f}"]
    if figures.speedup and ratio:
        parts.append(figures.speedup.ratio)
    return " · ".join(parts)


def pace_of(held: bool, gap_s: float) -> str:
    """`‖ held · ` or `▸ 2 rounds/s · `, in front of a title; nothing at full speed."""
    if held:
        return "‖ held · "
    if gap_s <= 0:
        return ""
    rate = "1 round/s" if gap_s == 1 else f"{1 / gap_s:.3g} rounds/s" if gap_s < 1 else f"1 round in {gap_s:.3g} s"
    return f"▸ {rate} · "


EARLIER = 8
"""The most earlier rounds that are shown."""

_DETAILS = 5
_DETAILS_WITH_LAYERS = 8
_LEGEND = 2
_LEGEND_FROM_LINES = 10
_EARLIER_FROM_LINES = 15
_DETAILS_FROM_LINES = 6

_USUAL = (("accepted", "kept"), ("bonus", "target's own"), ("rejected", "rejected"), ("unreached", "not reached"))
_RARE = (("pending", "not judged yet"), ("pruned", "pruned"), ("cut", "cut off"), ("forbidden", "forbidden"))


def earlier_rounds_lines(
    before: Sequence[RoundDone], width: int, height: int, marks: Marks, *, room: int
) -> list[ScreenLine]:
    """The rounds before this one, the last of them at the bottom, in a panel of this height with so many free lines."""
    room = min(room, EARLIER, len(before)) if height >= _EARLIER_FROM_LINES else 0
    if room <= 0:
        return []
    return [titled_rule("earlier rounds", width), *(_round_line(round, width, marks) for round in before[-room:])]


def node_lines(
    round: RoundDone, node: int, width: int, height: int, marks: Marks, *, roomy: bool, temperature: float | None = None
) -> list[ScreenLine]:
    """The details of one node. `roomy`: they may take lines from the tree in a low panel."""
    if height < _DETAILS_FROM_LINES:
        return []
    most = _DETAILS if lens_at(round, parent_of(round, node)) is None else _DETAILS_WITH_LAYERS
    room = most if height >= _EARLIER_FROM_LINES else min(most, height // 2 - 1) if roomy else 1
    lines = details(round, node, width, marks, temperature)[:room]
    return [titled_rule("this token", width), *lines, *([] for _ in range(room - len(lines)))]


def legend_lines(picture: Picture, width: int, height: int, marks: Marks) -> list[ScreenLine]:
    """What the marks mean: the usual ones, then others that occur in the tree, as many as fit."""
    shown_states = {node.shown_state for node in picture.nodes}
    named = [*_USUAL, *(one for one in _RARE if one[0] in shown_states)]
    entries: list[ScreenLine] = [[(marks.glyph(state), state), (f" {word}", "dim")] for state, word in named]
    if any(node.forced for node in picture.nodes):
        entries.append([(marks.accepted, "forced"), (" forced", "dim")])
    if any(node.agreed for node in picture.nodes):
        entries.append([(marks.agreement(2), "agreed"), (" two drafters agree", "dim")])
    lines: list[ScreenLine] = [[]]
    for entry in entries:
        gap: ScreenLine = [("  ", "")] if lines[-1] else []
        if width_of([*lines[-1], *gap, *entry]) <= width:
            lines[-1] += [*gap, *entry]
        elif lines[-1]:
            lines.append(entry)
    room = _LEGEND if height >= _LEGEND_FROM_LINES else 0
    return [clip(line, width) for line in [*lines, [], []][:room]]


def _round_line(round: RoundDone, width: int, marks: Marks) -> ScreenLine:
    """A round in one line: its marks and its text, in labels that are cut only where the whole ones have no room."""
    verdict = round.verdict
    bonus = 0 if verdict.bonus is None else 1
    head: ScreenLine = [(marks.accepted * len(verdict.path), "accepted"), (marks.bonus * bonus, "bonus"), ("  ", "")]

    def labelled(cells: int) -> ScreenLine:
        line = [*head, *((label(round.tree.texts[node], marks, cells), "drafted") for node in verdict.path)]
        return [*line, (label(verdict.bonus_text, marks, cells) * bonus, "target")]

    whole = labelled(WHOLE_CELLS)
    return whole if width_of(whole) <= width else clip(labelled(TOKEN_CELLS), width)


TOP_TOKENS = 8
"""A column of so many tokens fills the height of its line, unless a round gained more."""

_ROLES = ("good", "text", "warn")
"""The colours of proposers; blue means kept, and is none of them."""

_ALONE = "target alone"
_TITLED_FROM_LINES = 15
_PANEL_LINES_PER_RIBBON_LINE = 6
"""For so many lines of its height, a panel has room for one line of the ribbon."""


@dataclass(frozen=True, slots=True)
class Column:
    """One round: the tokens it gained, and who proposed most of them; empty where no guess was kept."""

    tokens: int
    proposer: str


@dataclass(frozen=True)
class Ribbon:
    """A drawn ribbon: its lines, which of them hold columns, and the round of the first column."""

    lines: list[ScreenLine]
    column_lines: range
    first: int
    width: int
    count: int

    def round_at(self, x: int, y: int) -> int | None:
        if y not in self.column_lines or not 0 <= x < self.width:
            return None
        at = self.first + (y - self.column_lines.start) * self.width + x
        return at if at < self.count else None


class RoundColumns:
    """The columns of rounds that grow; each round is counted once."""

    def __init__(self) -> None:
        self._known: list[Column] = []
        self._begin: RoundDone | None = None
        self._roles: dict[str, str] = {}

    def of(self, rounds: Sequence[RoundDone]) -> Sequence[Column]:
        """The columns of these rounds, which are those of the last call and more, or others."""
        if self._begin is not rounds[0] or len(self._known) > len(rounds):
            self._known, self._begin = [], rounds[0]
        self._known += [column_of(rounds[at]) for at in range(len(self._known), len(rounds))]
        return self._known

    def roles(self) -> Mapping[str, str]:
        """The colour of each proposer of these columns; it is the same in all replies."""
        return colours_of(self._known, self._roles)


def colours_of(columns: Sequence[Column], given: dict[str, str]) -> Mapping[str, str]:
    """The colour of each proposer in order of appearance: the one that was given to it before, or one of its own.

    Where all colours are taken, several proposers have the same. `given` takes the new ones.
    """
    given.setdefault(FORCED_BY, "forced")
    names = [name for name in dict.fromkeys(column.proposer for column in columns) if name]
    for name in names:
        if name not in given:
            first = crc32(name.encode()) % len(_ROLES)
            wanted = [*_ROLES[first:], *_ROLES[:first]]
            given[name] = next((role for role in wanted if role not in given.values()), wanted[0])
    return {name: given[name] for name in names} | {"": "target"}


def column_of(round: RoundDone) -> Column:
    named = proposers_of(round)
    counts = Counter(name for node in round.verdict.path for name in named.get(node, ()))
    return Column(len(round.pieces), counts.most_common(1)[0][0] if counts else "")


def ribbon_height(height: int, width: int, count: int) -> int:
    """The lines that the ribbon of so many rounds takes of a panel of this size."""
    if count == 0 or height < _PANEL_LINES_PER_RIBBON_LINE:
        return 0
    lines = min(-(-count // width), max(1, height // _PANEL_LINES_PER_RIBBON_LINE))
    return lines + 2 if height >= _TITLED_FROM_LINES else 1


def ribbon(
    columns: Sequence[Column], width: int, height: int, shown: int | None = None, roles: Mapping[str, str] | None = None
) -> Ribbon:
    """The ribbon in so many lines.

    Args:
        shown: the round that the user turned to, which is marked.
        roles: the colour of each proposer; that of "" is the target's own.
    """
    roles = colours_of(columns, {}) if roles is None else roles
    titled = height > 2
    column_lines = range(1, height - 1) if titled else range(height)
    first = _first(len(columns), width, len(column_lines), shown)
    top = max(TOP_TOKENS, max((column.tokens for column in columns), default=0))
    begins = range(first, first + len(column_lines) * width, width)
    lines = [_line(columns, begin, min(len(columns), begin + width), top, roles, shown) for begin in begins]
    if titled:
        line: ScreenLine = []
        for name, role in roles.items():
            entry: ScreenLine = [("  " if line else "", ""), ("█", role), (f" {visible(name) or _ALONE}", "dim")]
            if width_of([*line, *entry]) <= width:
                line += entry
        lines = [titled_rule(_title(columns, shown), width), *lines, line]
    return Ribbon(lines, column_lines, first, width, len(columns))


def _first(count: int, width: int, lines: int, shown: int | None) -> int:
    """The round in the first cell: the end is in view, or the round that is shown.

    Several lines scroll by whole lines, so that columns keep their places while a reply grows.
    """
    if lines == 1:
        first = max(0, count - width)
        return first if shown is None or shown >= first else max(0, shown - width // 2)
    first_line = -(-count // width) - lines
    if shown is not None:
        first_line = min(first_line, shown // width)
    return max(0, first_line) * width


def _line(
    columns: Sequence[Column], begin: int, end: int, top: int, roles: Mapping[str, str], shown: int | None
) -> ScreenLine:
    cells = [
        (spark([columns[at].tokens], top), "column" if at == shown else roles[columns[at].proposer])
        for at in range(begin, end)
    ]
    return [("".join(text for text, _ in run), role) for role, run in groupby(cells, key=lambda cell: cell[1])]


def _title(columns: Sequence[Column], shown: int | None) -> str:
    """`106 rounds, higher = more tokens`, or about the round that is shown."""
    if shown is None:
        return f"{len(columns):,} rounds, higher = more tokens" if len(columns) > 1 else "one round"
    column = columns[shown]
    who = f"by {visible(column.proposer)}" if column.proposer else "no guess kept"
    return f"{shown + 1:,} of {len(columns):,}: {numbers.tokens(column.tokens)}, {who}"
