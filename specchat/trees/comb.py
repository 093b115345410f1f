"""A comb: one chain, and beside each of its nodes the guesses that nearly took their place."""

from __future__ import annotations

from specchat.core.budget import Budget
from specchat.core.context import Context
from specchat.core.seams import Drafter, TreePolicy
from specchat.core.tree import TokenTree
from specchat.registry import NoOptions
from specchat.trees.given_shapes import StaticShape, grow_by_ranks


class Comb(TreePolicy):
    """Of the nodes of a chain and of their siblings those of most worth. Siblings get no children.

    The drafter is asked about one node at each depth, as for a chain: so many steps as the budget is deep, whatever
    its nodes. For a drafter whose steps cost time that gives nearly what `best_first` gives, for fewer of them.

    Whether a sampled draw stays never depends on its token: the first draw of a node is the one that is expanded, and
    worth is as in `best_first`.

    Reference: the shape is the one that SWIFT (arXiv:2410.06916) verifies. Differs: nodes compete by their worth.
    """

    keeps_draws = True

    def __init__(self, options: NoOptions) -> None:
        self._shapes: dict[tuple[int, int], StaticShape] = {}  # by width and depth

    def grow(self, drafter: Drafter, context: Context, budget: Budget) -> TokenTree:
        width, levels = budget.width, budget.depth if budget.nodes > 0 and budget.width > 0 else 0
        if (width, levels) not in self._shapes:
            self._shapes[width, levels] = StaticShape({(0,) * depth: width for depth in range(levels)})
        return grow_by_ranks(drafter, context, budget, self._shapes[width, levels])
