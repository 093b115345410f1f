"""A tree with a set number of children at each depth: SpecInfer's <k1, k2, …, km>."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from specchat.core.budget import Budget
from specchat.core.compiled_guessing import GrowthPlan, RankShape
from specchat.core.context import Context
from specchat.core.seams import Drafter, TreePolicy
from specchat.core.tree import TokenTree
from specchat.trees.given_shapes import grow_by_levels
from specchat.trees.options import ExpansionOptions


class Expansion(TreePolicy):
    """Every node at depth i − 1 gets k_i children, breadth first, until the nodes are used up.

    Without explicit widths it is <width, 1, 1, …>: so many chains side by side.

    Reference: Miao et al., SpecInfer, arXiv:2305.09781.
    """

    keeps_draws = True

    def __init__(self, options: ExpansionOptions) -> None:
        self._widths = options.per_depth()
        self._known: dict[tuple[int, ...], RankShape] = {}

    def grow(self, drafter: Drafter, context: Context, budget: Budget) -> TokenTree:
        widths = (self._widths or (budget.width, *[1] * (budget.depth - 1)))[: budget.depth]
        if widths and widths not in self._known:
            self._known[widths] = _as_numbers(widths)
        plan = GrowthPlan(budget, levels=True, first_come=True, shape=self._known.get(widths))
        return drafter.grow_at_once(context, plan) or grow_by_levels(drafter, context, budget, widths)


def _as_numbers(widths: Sequence[int]) -> RankShape:
    """One node of the shape for every depth."""
    begins = [sum(widths[:depth]) for depth in range(len(widths))]
    deepest = len(widths) - 1
    below = [depth + 1 if depth < deepest else -1 for depth, width in enumerate(widths) for _ in range(width)]
    return RankShape(array("i", widths), array("i", begins), array("i", below))
