"""EAGLE-2: expand the surest nodes of every level, then rerank all nodes and keep the N of most confidence."""

from __future__ import annotations

from specchat.core.budget import Budget
from specchat.core.compiled_guessing import GrowthPlan
from specchat.core.context import Context
from specchat.core.seams import Drafter, TreePolicy
from specchat.core.tree import ROOT, TokenTree, as_points
from specchat.trees.growth import Growth, best
from specchat.trees.options import Eagle2Options


class Eagle2(TreePolicy):
    """A dynamic tree by cumulative confidence: the product of the draft's probabilities down to a node.

    Expansion: of every level the `expand` nodes of most confidence get up to `width` children, down to `depth`.
    Reranking: of all nodes the N of most confidence stay; of equals the shallower, so parents stay with their
    children. A token's own probability decides whether it stays. So every guess becomes a point, and rules that
    weigh draft probabilities are refused.

    Reference: Li et al., EAGLE-2, arXiv:2406.16858. Differs: a node that cannot be among the N any more is not
    expanded; the result is the same, since confidence never grows downwards.
    """

    def __init__(self, options: Eagle2Options) -> None:
        self._expand = options.expand

    def grow(self, drafter: Drafter, context: Context, budget: Budget) -> TokenTree:
        tree = drafter.grow_at_once(context, GrowthPlan(budget, self._expand, levels=True))
        if tree is not None:
            return tree
        growth, width = Growth(context, budget), budget.width
        level = [ROOT] if width > 0 else []
        while level := best(growth.that_may_have_children(level), growth, self._expand):
            level = growth.consider_all(level, as_points(growth.ask(drafter, level, width)), width)
        return growth.best_tree()
