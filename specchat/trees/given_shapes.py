"""Growing a tree of a given shape, whatever its tokens: children for paths of ranks, or for all nodes of a level."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

from specchat.core.budget import Budget
from specchat.core.compiled_guessing import GrowthPlan, RankShape
from specchat.core.context import Context
from specchat.core.seams import Drafter
from specchat.core.tree import ROOT, TokenTree
from specchat.trees.growth import Growth
from specchat.trees.options import RankPath


class StaticShape:
    """How many children every path of ranks gets that has some; () is the root.

    Attributes:
        children: path → how many.
        as_numbers: the same for compiled code; None without any path.
    """

    def __init__(self, children: Mapping[RankPath, int]) -> None:
        self.children = children
        self.as_numbers = _as_numbers(children) if () in children else None


def grow_by_ranks(drafter: Drafter, context: Context, budget: Budget, shape: StaticShape) -> TokenTree:
    """The frozen tree of this shape, as far as prices and proposals go."""
    if shape.as_numbers is not None:
        tree = drafter.grow_at_once(context, GrowthPlan(budget, levels=True, shape=shape.as_numbers))
        if tree is not None:
            return tree
    growth, children = Growth(context, budget), shape.children
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


def _as_numbers(children: Mapping[RankPath, int]) -> RankShape:
    paths = sorted(children, key=len)
    number = {path: at for at, path in enumerate(paths)}
    widths, begins, below = array("i"), array("i"), array("i")
    for path in paths:
        widths.append(children[path])
        begins.append(len(below))
        below.extend(number.get((*path, rank), -1) for rank in range(children[path]))
    return RankShape(widths, begins, below)


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
