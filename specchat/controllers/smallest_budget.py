"""Several controllers as one: each plans, and the smallest budget holds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from specchat.core.budget import Budget, smaller
from specchat.core.context import Context
from specchat.core.round import Round
from specchat.core.seams import Controller


class SmallestBudget(Controller):
    """Does only what all of the controllers allow.

    All of them observe every round, so that each learns from what was really done.
    """

    def __init__(self, controllers: Sequence[Controller]) -> None:
        self._controllers = controllers

    def plan(self, context: Context) -> Budget:
        """The smallest of what each one plans, dimension by dimension."""
        return reduce(smaller, [controller.plan(context) for controller in self._controllers])

    def observe(self, round: Round) -> None:
        """Let all of them learn."""
        for controller in self._controllers:
            controller.observe(round)
