"""Inserts a plain round now and then, so that a reply's speed can be compared with plain decoding."""

from __future__ import annotations

from dataclasses import dataclass, field

from specchat.core.budget import Budget
from specchat.core.context import Context
from specchat.core.round import Round
from specchat.core.seams import Controller
from specchat.core.speedup import FEWEST_PLAIN_ROUNDS

EVERY = 24
"""One round at least of so many is plain. It changes no text, and costs some 2 % of the speed."""

SOON, EVERY_SOON = FEWEST_PLAIN_ROUNDS * 8, 8
"""Of a reply's first rounds it is one of 8, so that a reply of ordinary length has enough of them for a figure."""

_GOLDEN = 0.6180339887498949
"""Steps of this size fall evenly, and never in step with anything that repeats, such as another program's bursts."""


@dataclass
class PlainRounds:
    """A controller that has one round in 8, later in 24, decoded plainly, unless the controller inside already did."""

    controller: Controller
    _done: int = field(default=-1, init=False)  # the last block of rounds that has its plain round

    def plan(self, context: Context) -> Budget:
        """The controller's budget, or one without nodes where a plain round is due."""
        block, place, size = _block(context.round)
        if context.round == 0:
            self._done = -1
        if self._done != block and place == _place(block, size):
            return Budget(nodes=0, depth=0, width=0, why="to compare with")
        return self.controller.plan(context)

    def observe(self, round: Round) -> None:
        """Note whether the round was plain, and let the controller learn from it."""
        if round.budget.nodes == 0:
            self._done, _, _ = _block(round.index)
        self.controller.observe(round)


def _block(round: int) -> tuple[int, int, int]:
    """Which block a round is in, its place there, and the block's size."""
    if round < SOON:
        return *divmod(round, EVERY_SOON), EVERY_SOON
    block, place = divmod(round - SOON, EVERY)
    return SOON // EVERY_SOON + block, place, EVERY


def _place(block: int, size: int) -> int:
    """Where in this block the plain round is: never first, since the controller inside may decode all plainly."""
    return 1 + int((size - 1) * ((0.5 + block * _GOLDEN) % 1.0))
