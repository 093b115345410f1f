"""A plain round now and then, so that a reply can be compared with plain decoding on its own clock."""

from __future__ import annotations

from dataclasses import dataclass, field

from specchat.core.budget import Budget
from specchat.core.context import Context
from specchat.core.round import Round
from specchat.core.seams import Controller

EVERY = 24
"""One round at least of so many is plain. It changes no text, and costs some 2 % of the speed."""

_GOLDEN = 0.6180339887498949
"""Steps of this size fall evenly, and never in step with anything that repeats, such as another program's bursts."""


@dataclass
class PlainRounds:
    """A controller that has one round in every 24 decoded plainly, unless the controller inside already did."""

    controller: Controller
    _done: int = field(default=-1, init=False)  # the last block of 24 rounds that has its plain round

    def plan(self, context: Context) -> Budget:
        block, place = divmod(context.round, EVERY)
        if context.round == 0:
            self._done = -1
        if self._done != block and place == _place(block):
            return Budget(nodes=0, depth=0, width=0, why="to compare with")
        return self.controller.plan(context)

    def observe(self, round: Round) -> None:
        if round.budget.nodes == 0:
            self._done = round.index // EVERY
        self.controller.observe(round)


def _place(block: int) -> int:
    """Where in this block the plain round is."""
    return int(EVERY * ((0.5 + block * _GOLDEN) % 1.0))
