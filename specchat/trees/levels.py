"""Growing a tree level by level, which is all that static shapes differ in."""

from __future__ import annotations

import math
from collections.abc import Sequence

from specchat.core.budget import Budget
from specchat.core.context import Context
from specchat.core.seams import Drafter
from specchat.core.tree import ROOT, DrawKind, TokenTree


def grow_by_levels(drafter: Drafter, context: Context, budget: Budget, widths: Sequence[int]) -> TokenTree:
    """Give every node of depth i up to `widths[i]` children, until nodes, depth, widths or proposals run out.

    The decision to add a sampled draw never looks at its token (a repeated token takes no place, but it was
    drawn before anyone knew), so independent draws stay distributed as their q says. Points whose chance is below
    the budget's floor are left out, and so is whatever would grow below a node that is hardly reached.

    Returns:
        A frozen tree of at most 1 + `budget.nodes` nodes.
    """
    tree = TokenTree(context.root, context.vocab_size)
    frontier: list[int] = [ROOT]
    chance = {ROOT: 1.0}
    for width in widths[: budget.depth]:
        room = budget.nodes - tree.drafted
        if room <= 0 or not frontier:
            break
        proposal = drafter.propose(tree, frontier[:room], min(width, room), context)
        next_frontier: list[int] = []
        for parent, guesses in zip(frontier, proposal, strict=False):
            for guess in guesses[:width]:
                if tree.drafted >= budget.nodes:
                    break
                reached = chance[parent] * (1.0 if guess.logprob is None else min(1.0, math.exp(guess.logprob)))
                if guess.kind is DrawKind.POINT and reached < budget.floor:
                    continue
                size = len(tree)
                child = tree.add(parent, guess)
                chance[child] = max(reached, chance.get(child, 0.0))
                if child == size and reached >= budget.floor:
                    next_frontier.append(child)
        frontier = next_frontier
    return tree.freeze()
