"""The same budget in every round: the user's own."""

from __future__ import annotations

import dataclasses

from specchat.core.budget import Budget
from specchat.core.context import Context
from specchat.core.costs import Costs
from specchat.core.seams import Controller
from specchat.registry import NoOptions


class Fixed(Controller):
    """Plan the user's width, depth and nodes in every round.

    specchat's own: the baseline that other controllers are compared with.
    """

    def __init__(self, options: NoOptions, budget: Budget, costs: Costs | None = None) -> None:
        del options, costs
        self._budget = dataclasses.replace(budget, why="fixed by you")

    def plan(self, context: Context) -> Budget:
        """The user's own budget."""
        return self._budget
