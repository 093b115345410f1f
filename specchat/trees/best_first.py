"""The guesses that are most likely to be reached and to stand: `best_first`, and `specexec` for wide trees."""

from __future__ import annotations

import dataclasses
import math

from specchat.core.budget import Budget
from specchat.core.compiled_guessing import GrowthPlan
from specchat.core.context import Context
from specchat.core.seams import Drafter, TreePolicy
from specchat.core.tree import TokenTree
from specchat.trees.growth import Growth, search
from specchat.trees.options import BestFirstOptions, SpecExecOptions


class BestFirst(TreePolicy):
    """The N guesses of most worth, where a guess is worth the product of the probabilities down to it.

    Worth never grows downwards, so taking the best N one after another, parents first, gives the tree with the
    largest sum of worths, which is the expected number of accepted tokens as far as the drafter knows. A node is
    expanded only while a child of it could still be among the N. A draft model is asked about whole levels, so it runs
    at most `depth` passes; where asking costs no pass, the best few are asked about at a time. The tree is the same:
    the one that a heap with one call per node would grow.

    Sampled draws have the worth that is left for them *before* they are drawn: of draws at a node worth v, the first
    is worth v, and each leaves (1 − R) of its worth to the next and R to what grows below it, R being its own
    probability when its turn came. Whatever a draw's token brings about (its subtree, its next siblings) is worth no
    more than the draw, so it cannot push the draw out of the best N. So whether a draw stays never depends on its
    token, and it keeps the distribution it was drawn from.

    Reference: DySpec, arXiv:2410.11744; for points SpecExec's search, arXiv:2406.02532. Differs: the search runs
    level by level over all that may still matter, and prunes to N at the end, instead of one heap pop per call or a
    threshold fixed beforehand.
    """

    keeps_draws = True

    def __init__(self, options: BestFirstOptions) -> None:
        self._batch = options.batch
        self._floor = options.floor
        self._plan = GrowthPlan(Budget(0))

    def grow(self, drafter: Drafter, context: Context, budget: Budget) -> TokenTree:
        if self._plan.budget is not budget:  # mostly it is that of the last round
            self._plan = GrowthPlan(budget, self._batch, self._floor)
        tree = drafter.grow_at_once(context, self._plan)
        return tree or search(Growth(context, budget, self._floor), drafter, budget.width, self._batch)


class SpecExec(TreePolicy):
    """The N prefixes of highest cumulative probability, for budgets of hundreds of nodes.

    Each pass expands the best `beams` nodes that were not expanded yet, at whatever depth, with at most `children`
    children each; a prefix loses the factor `decay` per level. The search ends when the best new prefix is worth less
    than the N-th best, or after as many passes as the budget has levels.

    Reference: Svirschevski et al., SpecExec, arXiv:2406.02532. Differs: the budget's width bounds children too, so set
    it as high as `children`; prefixes under `floor` are left out, which the published code only offers.
    """

    keeps_draws = True

    def __init__(self, options: SpecExecOptions) -> None:
        self._options = options

    def grow(self, drafter: Drafter, context: Context, budget: Budget) -> TokenTree:
        floor, decay, beams = math.exp(self._options.floor), self._options.decay, self._options.beams
        width = min(budget.width, self._options.children)
        plan = GrowthPlan(dataclasses.replace(budget, width=width), beams, floor, decay, calls=budget.depth)
        if (tree := drafter.grow_at_once(context, plan)) is not None:
            return tree
        return search(Growth(context, budget, floor, decay), drafter, width, beams, calls=budget.depth)
