"""Two replies by turns, so that whatever the machine does meanwhile is done to both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from specchat.decoding.stopwatch import Stopwatch

TURN_TOKENS = 16
"""Tokens of a turn: some tenths of a second. Shorter ones would be all beginning, longer ones would feel the drift."""


@dataclass
class Side:
    """A reply that is written round by round, and its clock.

    Args:
        rounds: does a round when asked for the next, and says how many tokens it emitted.
    """

    rounds: Iterator[int]
    watch: Stopwatch
    tokens: int = 0
    over: bool = field(default=False, init=False)

    def turn(self, goal: int) -> None:
        """Go on until so many tokens are written. The clock runs meanwhile, and only then."""
        self.watch.go_on()
        while not self.over and self.tokens < goal:
            emitted = next(self.rounds, None)
            self.over = emitted is None
            self.tokens += emitted or 0
        self.watch.stop()


def by_turns(a: Side, b: Side) -> None:
    """Write both to their ends: A B, B A, A B, …

    Both go as far in the text as the other before either goes on: so their contexts are equally long, and they end
    together. That the order changes takes out what grows slowly, such as heat.
    """
    for side in (a, b):
        side.watch.stop()
    first, second, goal = a, b, TURN_TOKENS
    while not (a.over and b.over):
        first.turn(goal)
        second.turn(goal)
        first, second, goal = second, first, goal + TURN_TOKENS
