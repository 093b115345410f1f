"""A tree with a set number of children at each depth: SpecInfer's <k1, k2, …, km>."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from specchat.core.budget import Budget
from specchat.core.context import Context
from specchat.core.request import LayerHook
from specchat.core.round import Round
from specchat.core.seams import Drafter
from specchat.core.tree import TokenTree
from specchat.trees.levels import grow_by_levels
from specchat.trees.options import ExpansionOptions


class Expansion:
    """Every node at depth i − 1 gets k_i children, breadth first, until the nodes are used up.

    Without explicit widths it is <width, 1, 1, …>: so many chains side by side.

    Reference: Miao et al., SpecInfer, arXiv:2305.09781.
    """

    keeps_draws: Final = True
    taps: Sequence[int] = ()

    def __init__(self, options: ExpansionOptions) -> None:
        self._widths = options.per_depth()

    def hooks(self, tree: TokenTree) -> Sequence[LayerHook]:
        """None: no node is dropped during the pass."""
        return ()

    def observe(self, round: Round) -> None:
        """Nothing to learn."""

    def grow(self, drafter: Drafter, context: Context, budget: Budget) -> TokenTree:
        """A frozen tree of at most 1 + `budget.nodes` nodes, filled breadth first."""
        widths = self._widths or (budget.width, *[1] * (budget.depth - 1))
        return grow_by_levels(drafter, context, budget, widths)
