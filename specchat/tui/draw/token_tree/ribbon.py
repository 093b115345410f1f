"""A whole reply as a ribbon: a column a round, as high as the tokens gained, in the colour of who proposed them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from specchat.engine.protocol.events import RoundDone
from specchat.engine.protocol.text import visible
from specchat.tui.draw.token_tree.picture import proposers_of
from specchat.tui.text.cells import ScreenLine, spark, titled_rule, width_of

TOP_TOKENS = 8
"""A column of so many tokens fills the height of its line, unless a round gained more."""

_ROLES = ("drafted", "good", "agreed")
"""The colours of proposers in the order in which they appear; the last is that of all further ones."""

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
        """The round that is drawn in this cell."""
        if y not in self.column_lines or not 0 <= x < self.width:
            return None
        at = self.first + (y - self.column_lines.start) * self.width + x
        return at if at < self.count else None


class Columns:
    """The columns of rounds that grow; each round is counted once."""

    def __init__(self) -> None:
        self._known: list[Column] = []
        self._begin: RoundDone | None = None

    def of(self, rounds: Sequence[RoundDone]) -> Sequence[Column]:
        """The columns of these rounds, which are those of the last call and more, or others."""
        if self._begin is not rounds[0] or len(self._known) > len(rounds):
            self._known, self._begin = [], rounds[0]
        self._known += [column_of(rounds[at]) for at in range(len(self._known), len(rounds))]
        return self._known


def column_of(round: RoundDone) -> Column:
    """A round as a column."""
    named = proposers_of(round)
    counts = Counter(name for node in round.verdict.path for name in named.get(node, ()))
    return Column(len(round.pieces), counts.most_common(1)[0][0] if counts else "")


def ribbon_height(height: int, width: int, count: int) -> int:
    """The lines that the ribbon of so many rounds takes of a panel of this size."""
    if count == 0 or height < _PANEL_LINES_PER_RIBBON_LINE:
        return 0
    lines = min(-(-count // width), max(1, height // _PANEL_LINES_PER_RIBBON_LINE))
    return lines + 2 if height >= _TITLED_FROM_LINES else 1


def ribbon(columns: Sequence[Column], width: int, height: int, shown: int | None = None) -> Ribbon:
    """The ribbon in so many lines.

    Args:
        shown: the round that the user turned to, which is marked.
    """
    titled = height > 2
    column_lines = range(1, height - 1) if titled else range(height)
    first = _first(len(columns), width, len(column_lines), shown)
    top = max(TOP_TOKENS, max((column.tokens for column in columns), default=0))
    roles = _roles(columns)
    begins = range(first, first + len(column_lines) * width, width)
    lines = [_line(columns, begin, min(len(columns), begin + width), top, roles, shown) for begin in begins]
    if titled:
        lines = [titled_rule(_title(columns, shown), width), *lines, _legend(roles, width)]
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
    columns: Sequence[Column], begin: int, end: int, top: int, roles: dict[str, str], shown: int | None
) -> ScreenLine:
    cells = [
        (spark([columns[at].tokens], top), "column" if at == shown else roles[columns[at].proposer])
        for at in range(begin, end)
    ]
    return [("".join(text for text, _ in run), role) for role, run in groupby(cells, key=lambda cell: cell[1])]


def _roles(columns: Sequence[Column]) -> dict[str, str]:
    """The role of each proposer's columns, in order of their first appearance."""
    names = [name for name in dict.fromkeys(column.proposer for column in columns) if name]
    return {name: _ROLES[min(at, len(_ROLES) - 1)] for at, name in enumerate(names)} | {"": "target"}


def _title(columns: Sequence[Column], shown: int | None) -> str:
    """`106 rounds, higher = more tokens`, or about the round that is shown."""
    if shown is None:
        return f"{len(columns):,} rounds, higher = more tokens" if len(columns) > 1 else "one round"
    column = columns[shown]
    who = f"by {visible(column.proposer)}" if column.proposer else "no guess kept"
    tokens = f"{column.tokens} tokens" if column.tokens != 1 else "1 token"
    return f"{shown + 1:,} of {len(columns):,}: {tokens}, {who}"


def _legend(roles: dict[str, str], width: int) -> ScreenLine:
    """Which colour is whose, as many as fit."""
    line: ScreenLine = []
    for name, role in roles.items():
        entry: ScreenLine = [("  " if line else "", ""), ("█", role), (f" {visible(name) or _ALONE}", "dim")]
        if width_of([*line, *entry]) <= width:
            line += entry
    return line
