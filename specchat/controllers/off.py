"""Never speculate: plain decoding is a round whose budget is 0."""

from __future__ import annotations

from specchat.core.budget import Budget
from specchat.core.context import Context
from specchat.core.costs import Costs
from specchat.core.seams import Controller
from specchat.registry import NoOptions


class Off(Controller):
    """Plan no drafts in any round: plain decoding.

    specchat's own: plain decoding by the same round, so that speed-ups compare like with like.
    """

    def __init__(self, options: NoOptions, budget: Budget, costs: Costs | None = None) -> None:
        del options, budget, costs

    def plan(self, context: Context) -> Budget:
        """A budget of 0 nodes."""
        return Budget(nodes=0, depth=0, width=0, why="off")
