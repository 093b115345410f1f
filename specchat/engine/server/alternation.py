"""Two replies written alternately, so that disturbances of the machine affect both alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from specchat.decoding.reply_events import Stopwatch

SLICE_TOKENS = 16
"""Tokens before the other reply goes on: some tenths of a second. In shorter slices switching would dominate; over
longer ones the machine's speed drifts."""


@dataclass
class AlternatingReply:
    """A reply that is written round by round, and its clock.

    Args:
        rounds: does a round when asked for the next, and says how many tokens it emitted.
    """

    rounds: Iterator[int]
    watch: Stopwatch
    tokens: int = 0
    over: bool = field(default=False, init=False)

    def write_to(self, goal: int) -> None:
        """Go on until so many tokens are written. The clock runs meanwhile, and only then."""
        self.watch.go_on()
        while not self.over and self.tokens < goal:
            emitted = next(self.rounds, None)
            self.over = emitted is None
            self.tokens += emitted or 0
        self.watch.stop()


def alternate(a: AlternatingReply, b: AlternatingReply) -> None:
    """Write both to their ends: A B, B A, A B, …

    Both reach the same length before either goes on, so their contexts are equally long. The changing order cancels
    slow drifts, such as a processor that warms up.
    """
    for side in (a, b):
        side.watch.stop()
    first, second, goal = a, b, SLICE_TOKENS
    while not (a.over and b.over):
        first.write_to(goal)
        second.write_to(goal)
        first, second, goal = second, first, goal + SLICE_TOKENS
