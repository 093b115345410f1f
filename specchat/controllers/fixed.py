"""The same budget in every round: none, the user's own, or that with time for a drafter to search in."""

from __future__ import annotations

import dataclasses

from specchat.controllers.options import SearchOptions
from specchat.core.budget import Budget
from specchat.core.context import Context
from specchat.core.costs import Costs
from specchat.core.round import Round
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


class Search(Controller):
    """Lets the drafter search after a round for as long as searching has taken no more than its share of the time.

    Drafting goes on meanwhile, with the best that was found. A drafter without anything to search for learns nothing
    from it and takes no time. Between replies such a drafter searches under every controller.

    Reference: Xia et al., SWIFT, arXiv:2410.06916. Differs: there a first phase searches after every round, and a
    second one never.
    """

    def __init__(self, options: SearchOptions, budget: Budget, costs: Costs | None = None) -> None:
        super().__init__(options, budget)
        self._share = options.share
        self._all_s = self._searching_s = 0.0

    def plan(self, context: Context) -> Budget:
        if self._searching_s > self._share * self._all_s:
            return dataclasses.replace(self._budget, why="fixed by you")
        return dataclasses.replace(self._budget, search=True, why="fixed by you; the drafter may search")

    def observe(self, round: Round) -> None:
        """Count what the round took, and what of it was learning where the drafter might search."""
        timings = round.timings
        self._all_s += timings.draft_s + timings.verify_s + timings.other_s
        if round.budget.search:
            self._searching_s += timings.learn_s
