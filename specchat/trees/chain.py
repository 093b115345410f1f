"""A chain: the drafter's best guess after each of its guesses. A tree with one child per node."""

from __future__ import annotations

from specchat.core.budget import Budget
from specchat.core.context import Context
from specchat.core.seams import Drafter, TreePolicy
from specchat.core.tree import TokenTree
from specchat.registry import NoOptions
from specchat.trees.given_shapes import StaticShape, grow_by_ranks


class Chain(TreePolicy):
    """One branch, as deep as the budget and the drafter go.

    Reference: Chen et al., Accelerating Large Language Model Decoding with Speculative Sampling, arXiv:2302.01318.
    """

    keeps_draws = True

    def __init__(self, options: NoOptions) -> None:
        self._known: dict[int, StaticShape] = {}  # by depth

    def grow(self, drafter: Drafter, context: Context, budget: Budget) -> TokenTree:
        depth = min(budget.depth, budget.nodes)
        if depth not in self._known:
            self._known[depth] = StaticShape({(0,) * above: 1 for above in range(depth)})
        return grow_by_ranks(drafter, context, budget, self._known[depth])
