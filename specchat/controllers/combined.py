"""Controllers around others: the smallest budget of several, and a plain round now and then.

With plain rounds a reply's speed can be compared with plain decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce

from specchat.core.budget import Budget, smaller
from specchat.core.context import Context
from specchat.core.round import Round
from specchat.core.seams import Controller
from specchat.core.speedup import FEWEST_PLAIN_ROUNDS


class SmallestBudget(Controller):
    """Does only what all of the controllers allow; each of them observes every round and learns from what was done."""

    def __init__(self, controllers: Sequence[Controller]) -> None:
        self._controllers = controllers

    def plan(self, context: Context) -> Budget:
        """The smallest of what each one plans, dimension by dimension."""
        return reduce(smaller, [controller.plan(context) for controller in self._controllers])

    def observe(self, round: Round) -> None:
        for controller in self._controllers:
            controller.observe(round)

    def learn_with(self, other: Controller) -> None:
        assert isinstance(other, SmallestBudget), "controllers of the same settings learn together"
        for own, theirs in zip(self._controllers, other._controllers, strict=True):
            own.learn_with(theirs)

    def save_state(self) -> bytes:
        return next(filter(None, (controller.save_state() for controller in self._controllers)), b"")

    def restore_state(self, state: bytes) -> None:
        for controller in self._controllers:
            controller.restore_state(state)


EVERY = 24
"""One round at least of so many is plain. It changes no text, and costs some 2 % of the speed."""

OPENING = 12
"""So many rounds at the beginning of a reply have guesses: a reply that ends soon has too few plain ones for a figure,
and would be slowed for nothing."""

SOONER = ((OPENING + 3 * FEWEST_PLAIN_ROUNDS, 3), (60, 12))
"""Until this round of a reply it is one of so many, so that there are soon enough of them for a figure.

The second pair is there because one plain round must not stand for much more of a reply than another: with 24 right
after 4 or 3, replies of 50 to 150 rounds had no figure in an eighth of all cases, or an interval that was too short.
"""

_GOLDEN = 0.6180339887498949
"""Steps of this size fall evenly, and never in step with anything that repeats, such as another program's bursts."""


@dataclass
class PlainRounds(Controller):
    """Has one round in 3, later in 24, decoded plainly, unless the controller inside already did."""

    controller: Controller
    _done: int = field(default=-1, init=False)  # the last block of rounds that has its plain round

    def plan(self, context: Context) -> Budget:
        if context.round == 0:
            self._done = -1
        block, place, size = _block(context.round)
        if self._done != block and place == _place(block, size):
            return Budget(nodes=0, depth=0, width=0, why="to compare with")
        return self.controller.plan(context)

    def observe(self, round: Round) -> None:
        if round.budget.nodes == 0:
            self._done, _, _ = _block(round.index)
        self.controller.observe(round)


def _block(round: int) -> tuple[int, int, int]:
    """Which block a round is in, −1 for the opening, its place there, and the block's size."""
    before, begins = 0, OPENING
    if round < begins:
        return -1, round, begins
    for ends, size in SOONER:
        if round < ends:
            break
        before, begins = before + (ends - begins) // size, ends
    else:
        size = EVERY
    block, place = divmod(round - begins, size)
    return before + block, place, size


def _place(block: int, size: int) -> int:
    """Where in this block the plain round is: never first, since the controller inside may decode all plainly."""
    return 1 + int((size - 1) * ((0.5 + block * _GOLDEN) % 1.0))
