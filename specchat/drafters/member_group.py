"""What every drafter that is made of others hands on to them: states, extra rows, rounds."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
from collections.abc import Sequence

from specchat.core.head_needs import FIRST, HeadNeeds
from specchat.core.optional_drafter_abilities import needs_of
from specchat.core.reading import Reading
from specchat.core.request import ExtraRow
from specchat.core.round import Round
from specchat.core.seams import Drafter
from specchat.core.states import HiddenStateSink, TextStates
from specchat.core.tree import TokenTree


class MemberGroup:
    """A drafter made of others, which are told everything together, each as if it were alone.

    Who proposes what is left to the drafters that extend it.
    """

    def __init__(self, members: Sequence[Drafter]) -> None:
        self.members = tuple(members)
        self.hidden_state_sink = _joined([member.hidden_state_sink for member in members])
        self._riders = [0] * len(self.members)  # how many of each member ride along in this round

    @property
    def taps(self) -> list[int]:
        """Layers of the target that any member wants, ascending."""
        wanted: list[int] = []
        for member in self.members:  # asked every round, and mostly there are none
            if taps := member.taps:
                wanted += taps
        return sorted({*wanted}) if wanted else wanted

    @property
    def needs(self) -> HeadNeeds:
        """What any member looks at of the target's readings."""
        return functools.reduce(operator.or_, map(needs_of, self.members), FIRST)

    @property
    def passes(self) -> int:
        """Forward passes of all members' draft models so far."""
        count = 0
        for member in self.members:
            count += member.passes
        return count

    def start(self, history: Sequence[int]) -> None:
        """Let every member begin."""
        for member in self.members:
            member.start(history)

    def extra_rows(self, tree: TokenTree) -> Sequence[ExtraRow]:
        """All members' extra rows, one member after the other; links between extra rows are renumbered."""
        extra_rows: list[ExtraRow] = []
        for index, member in enumerate(self.members):
            own, before = member.extra_rows(tree), len(extra_rows)
            self._riders[index] = len(own)
            if own:
                extra_rows += [
                    extra_row
                    if extra_row.after is None
                    else dataclasses.replace(extra_row, after=extra_row.after + before)
                    for extra_row in own
                ]
        return extra_rows

    def observe(self, round: Round) -> None:
        """Let every member learn; each sees the rows of its own extra rows alone."""
        if round.reading.extra_row_logits is None:
            for member in self.members:
                member.observe(round)
            return
        ends = list(itertools.accumulate(self._riders, initial=0))
        for member, (start, end) in zip(self.members, itertools.pairwise(ends), strict=True):
            own = _with_riders(round.reading, start, end)
            member.observe(round if own is round.reading else dataclasses.replace(round, reading=own))

    def close(self) -> None:
        """Close every member."""
        for member in self.members:
            member.close()


def _joined(taps: Sequence[HiddenStateSink | None]) -> HiddenStateSink | None:
    """One tap for all members that want states of the text: each is given those of its own layers."""
    wanted = [tap for tap in taps if tap is not None]
    if len(wanted) < 2:
        return wanted[0] if wanted else None

    def take(states: TextStates) -> None:
        for tap in wanted:
            tap.take(states.only(tap.layers))

    def skip(first: int, tokens: Sequence[int]) -> None:
        for tap in wanted:
            if tap.skip is not None:
                tap.skip(first, tokens)

    layers = frozenset[int]().union(*(tap.layers for tap in wanted))
    return HiddenStateSink(layers, take, skip if all(tap.skip is not None for tap in wanted) else None)


def _with_riders(reading: Reading, start: int, end: int) -> Reading:
    """The reading with the rows of some extra rows alone."""
    if reading.extra_row_logits is None:
        return reading
    return dataclasses.replace(
        reading,
        extra_row_logits=reading.extra_row_logits[start:end],
        extra_row_states={layer: rows[start:end] for layer, rows in reading.extra_row_states.items()},
        extra_row_likeliest=None if reading.extra_row_likeliest is None else reading.extra_row_likeliest[start:end],
    )
