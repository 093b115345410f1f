"""Growing a tree whose shape is given by ranks: which guesses get children, whatever their tokens are."""

from __future__ import annotations

from array import array
from collections.abc import Mapping

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
