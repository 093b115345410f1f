"""A static tree: which ranks get a child, and which ranks below those, decided before any text is seen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from specchat.core.budget import Budget
from specchat.core.context import Context
from specchat.core.seams import Drafter, TreePolicy
from specchat.core.tree import TokenTree
from specchat.trees.given_shapes import StaticShape, grow_by_ranks
from specchat.trees.options import RankPath, TemplateOptions


class Template(TreePolicy):
    """The same shape in every round, written as paths of ranks: (0, 2) is the third guess after the best guess.

    The shape is one of three, the first that is given: explicit paths; a number of nodes for every depth, filled
    with the paths of most worth; or the paths of most worth altogether, which is the best static tree for that
    many nodes. A path is worth the product of its ranks' acceptance rates. The budget's width bounds the ranks, its
    depth the paths, and its nodes keep the paths of most worth. Within the shape the budget's prices decide, by the
    probabilities that the drafter gives its guesses: where rows are dear, only its likely part is drafted.

    The shape looks at ranks and never at tokens, and has no rank without the better ones, so draws keep their law.

    Reference: Luo et al., Token Recycling, arXiv:2408.08696, for the counts 8, 21, 25, 15, 8, 3 (80 nodes). Differs:
    which nodes get those children, and the choice of the paths of most worth, are specchat's own.
    """

    keeps_draws = True

    def __init__(self, options: TemplateOptions) -> None:
        self._paths = options.rank_paths()
        self._counts = options.per_depth()
        self._rates = options.by_rank()
        self._known: dict[tuple[int, int, int], StaticShape] = {}

    def grow(self, drafter: Drafter, context: Context, budget: Budget) -> TokenTree:
        """A frozen tree of at most 1 + `budget.nodes` nodes within the shape, without guesses below their price."""
        return grow_by_ranks(drafter, context, budget, self._children(budget))

    def shape(self, budget: Budget) -> tuple[RankPath, ...]:
        """The paths that fit into the budget, parents first and better ranks first."""
        paths, rates = self._paths, self._rates
        if not paths:
            paths = best_by_depth(self._counts, rates, budget.width) if self._counts else best_paths(rates, budget)
        fitting = [path for path in paths if len(path) <= budget.depth and max(path) < budget.width]
        fitting.sort(key=lambda path: (-worth(path, rates), len(path), path))
        return tuple(sorted(fitting[: budget.nodes], key=lambda path: (len(path), path)))

    def _children(self, budget: Budget) -> StaticShape:
        """How many children every path gets; worked out once for nodes, depth and width, whatever the prices are."""
        size = (budget.nodes, budget.depth, budget.width)
        if size not in self._known:
            self._known[size] = StaticShape(children_counts(self.shape(budget)))
        return self._known[size]


def worth(path: RankPath, rates: Sequence[float]) -> float:
    """How likely the whole path is to stand: the product of its ranks' rates; ranks without one share the last."""
    return math.prod(rates[min(rank, len(rates) - 1)] for rank in path)


def best_by_depth(counts: Sequence[int], rates: Sequence[float], width: int) -> tuple[RankPath, ...]:
    """At every depth so many paths: of all children of the paths one level up, those of most worth."""
    chosen: list[RankPath] = []
    level: list[RankPath] = [()]
    for count in counts:
        level = _best([(*path, rank) for path in level for rank in range(width)], rates, count)
        chosen += level
    return tuple(chosen)


def best_paths(rates: Sequence[float], budget: Budget) -> tuple[RankPath, ...]:
    """The paths of most worth: the static tree with the most expected accepted tokens for its nodes.

    At each depth no more than `nodes` paths can be among them, and those are children of the same kept one up.
    """
    chosen: list[RankPath] = []
    level: list[RankPath] = [()]
    for _ in range(budget.depth):
        level = _best([(*path, rank) for path in level for rank in range(budget.width)], rates, budget.nodes)
        chosen = _best([*chosen, *level], rates, budget.nodes)
        level = [path for path in level if path in set(chosen)]
    return tuple(chosen)


def children_counts(paths: Sequence[RankPath]) -> Mapping[RankPath, int]:
    """How many children every path that has some gets; () is the root."""
    counts: dict[RankPath, int] = {}
    for path in paths:
        counts[path[:-1]] = max(counts.get(path[:-1], 0), path[-1] + 1)
    return counts


def _best(paths: Sequence[RankPath], rates: Sequence[float], count: int) -> list[RankPath]:
    return sorted(paths, key=lambda path: (-worth(path, rates), len(path), path))[:count]
