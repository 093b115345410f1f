"""Grows a tree level by level, with a given number of children at each: all that static shapes need."""

from __future__ import annotations

from collections.abc import Sequence

from specchat.core.budget import Budget
from specchat.core.context import Context
from specchat.core.seams import Drafter
from specchat.core.tree import ROOT, TokenTree
from specchat.trees.growth import Growth


def grow_by_levels(drafter: Drafter, context: Context, budget: Budget, widths: Sequence[int]) -> TokenTree:
    """Give every node of depth i up to `widths[i]` children, until nodes, depth, widths, prices or proposals run out.

    The decision to add a sampled draw never looks at its token, so independent draws stay distributed as their q says.

    Returns:
        A frozen tree of at most 1 + `budget.nodes` nodes.
    """
    growth = Growth(context, budget)
    frontier: list[int] = [ROOT]
    for width in widths[: budget.depth]:
        frontier = growth.that_may_have_children(frontier)[: growth.room]
        if not frontier:
            break
        proposal = growth.ask(drafter, frontier, min(width, growth.room))
        frontier = [
            child
            for parent, guesses in zip(frontier, proposal, strict=True)
            for child in growth.consider(parent, guesses[: min(width, growth.room)]).values()
        ]
    return growth.best_tree()
