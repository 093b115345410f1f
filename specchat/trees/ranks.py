"""Growing a tree whose shape is given by ranks: which guesses get children, whatever their tokens are."""

from __future__ import annotations

from collections.abc import Mapping

from specchat.core.budget import Budget
from specchat.core.context import Context
from specchat.core.seams import Drafter
from specchat.core.tree import ROOT, TokenTree
from specchat.trees.growth import Growth
from specchat.trees.options import RankPath


def grow_by_ranks(drafter: Drafter, context: Context, budget: Budget, children: Mapping[RankPath, int]) -> TokenTree:
    """The frozen tree of this shape, as far as prices and proposals go.

    Args:
        children: how many children every path of ranks gets that has some; () is the root.
    """
    growth = Growth(context, budget)
    level: dict[RankPath, int] = {(): ROOT}
    while level := {path: node for path, node in level.items() if path in children and growth.may_have_children(node)}:
        width = max(children[path] for path in level)
        proposal = growth.ask(drafter, list(level.values()), width)
        level = {
            (*path, rank): child
            for (path, node), guesses in zip(level.items(), proposal, strict=True)
            for rank, child in growth.consider(node, guesses[: children[path]]).items()
        }
    return growth.best_tree()
