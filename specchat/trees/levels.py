"""Growing a tree level by level, which is all that static shapes differ in."""

from __future__ import annotations

from collections.abc import Sequence

from specchat.core.seams import Budget, Context, Drafter
from specchat.core.tree import ROOT, TokenTree


def grow_by_levels(drafter: Drafter, context: Context, budget: Budget, widths: Sequence[int]) -> TokenTree:
    """Give every node of depth i up to `widths[i]` children, until nodes, depths or proposals run out.

    The decision to add a child never looks at the child's token (a repeated token takes no place, but it was
    drawn before anyone knew), so independent draws stay distributed as their q says.

    Returns:
        A frozen tree of at most 1 + `budget.nodes` nodes.
    """
    tree = TokenTree(context.root, context.vocab_size)
    frontier: list[int] = [ROOT]
    for width in widths:
        room = budget.nodes - tree.drafted
        if room <= 0 or not frontier:
            break
        proposal = drafter.propose(tree, frontier[:room], min(width, room), context)
        next_frontier: list[int] = []
        for parent, guesses in zip(frontier, proposal, strict=False):
            for guess in guesses[:width]:
                if tree.drafted >= budget.nodes:
                    break
                size = len(tree)
                child = tree.add(parent, guess)
                if child == size:
                    next_frontier.append(child)
        frontier = next_frontier
    return tree.freeze()
