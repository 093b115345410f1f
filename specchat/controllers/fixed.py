"""The same budget in every round: none, or the user's own."""

from __future__ import annotations

import dataclasses

from specchat.core.budget import Budget
from specchat.core.context import Context
from specchat.core.costs import Costs
from specchat.core.seams import Controller


class Off(Controller):
    """Plan no drafts in any round: plain decoding.

    specchat's own: plain decoding by the same round, so that speed-ups compare like with like.
    """

    def plan(self, context: Context) -> Budget:
        return Budget(nodes=0, depth=0, width=0, why="off")


class Fixed(Controller):
    """Plan the user's width, depth and nodes in every round.

    specchat's own: the baseline that other controllers are compared with.
    """

    def __init__(self, options: object, budget: Budget, costs: Costs | None = None) -> None:
        super().__init__(options, dataclasses.replace(budget, why="fixed by you"))

    def plan(self, context: Context) -> Budget:
        return self._budget
