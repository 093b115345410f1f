"""SpecExec: the N likeliest prefixes in wide trees, found by a parallel search with a bounded beam."""

from __future__ import annotations

import dataclasses
import math

from specchat.core.budget import Budget
from specchat.core.compiled_guessing import GrowthPlan
from specchat.core.context import Context
from specchat.core.seams import Drafter, TreePolicy
from specchat.core.tree import TokenTree
from specchat.trees.growth import Growth, search
from specchat.trees.options import SpecExecOptions


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
