"""Sequoia: the optimal static tree for the acceptance rates and the costs that were measured."""

from __future__ import annotations

import numpy as np

from specchat.core.budget import Budget
from specchat.core.context import Context
from specchat.core.round import Round
from specchat.core.seams import Drafter, TreePolicy
from specchat.core.tree import ROOT, TokenTree
from specchat.indexes.recent_linear_fit import RecentLinearFit
from specchat.trees.optimal_shape import OptimalShapes
from specchat.trees.options import SequoiaOptions
from specchat.trees.ranks import StaticShape, grow_by_ranks

_PRIOR_TRIES = 16
"""The rates in the options count as much as so many guesses."""

_LEAST_RATE = 0.002
"""Ranks beyond the last one that stands so often get no nodes."""


class Sequoia(TreePolicy):
    """The static tree with the most expected tokens per second, worked out anew every `relearn` rounds.

    It counts how often the guess of each rank stands where the target was asked after its parent. Dynamic programming
    gives the best tree for every number of nodes and every depth within the budget; of these it takes the one with
    the most expected tokens per predicted second. A pass of the target costs a straight line over rows, drafting costs
    the same for every level; both follow what rounds took. Until rows have varied, every other tree has half the nodes.
    Where the controller states prices, it has measured costs itself: then the tree is the best for the whole budget,
    and the prices decide.

    The shape looks at ranks and never at tokens, so draws keep their distribution; with the rule `recursive` they are
    drawn without replacement, as published.

    Reference: Chen et al., Sequoia, arXiv:2402.12374. Differs: rates and costs are measured while it runs instead of
    beforehand, starting from `rates`.
    """

    keeps_draws = True

    def __init__(self, options: SequoiaOptions) -> None:
        self._prior = options.by_rank()
        self._relearn = options.relearn
        self._tries: list[int] = []
        self._hits: list[int] = []
        self._verify_s = RecentLinearFit()
        self._level_s = 0.0
        self._rounds = 0
        self._known: dict[tuple[int, int, int, bool], StaticShape] = {}

    def grow(self, drafter: Drafter, context: Context, budget: Budget) -> TokenTree:
        """A frozen tree of the shape that is best now, at most 1 + `budget.nodes` nodes."""
        return grow_by_ranks(drafter, context, budget, self._children(budget))

    def observe(self, round: Round) -> None:
        """Count which ranks stood, and take in what the round took."""
        levels = max(round.tree.depths)
        self._verify_s.add(round.rows, round.timings.verify_s)
        if levels:
            self._count(round)
            self._level_s += (round.timings.draft_s / levels - self._level_s) / min(20, self._rounds + 1)
            self._rounds += 1
            if self._rounds % self._relearn == 0 or self._rounds < _PRIOR_TRIES:
                self._known.clear()

    def rates(self, width: int) -> list[float]:
        """How often the guess of each rank stands, as far as is known."""
        found = []
        for rank in range(width):
            prior = self._prior[min(rank, len(self._prior) - 1)]
            tries, hits = (self._tries[rank], self._hits[rank]) if rank < len(self._tries) else (0, 0)
            found.append((hits + _PRIOR_TRIES * prior) / (tries + _PRIOR_TRIES))
        while len(found) > 1 and found[-1] < _LEAST_RATE:
            found.pop()
        return found

    def _children(self, budget: Budget) -> StaticShape:
        nodes, priced = budget.nodes, bool(budget.prices)
        if not priced and not self._verify_s.known and self._rounds % 2:
            nodes = max(1, nodes // 2)
        size = (nodes, budget.depth, budget.width, priced)
        if size not in self._known:
            shapes = OptimalShapes(self.rates(budget.width), nodes, budget.depth)
            depth = budget.depth
            if not priced and self._verify_s.known and nodes and depth:
                nodes, depth = self._best_size(shapes)
            self._known[size] = StaticShape(shapes.children(nodes, depth))
        return self._known[size]

    def _best_size(self, shapes: OptimalShapes) -> tuple[int, int]:
        """Nodes and depth with the most expected tokens per predicted second; at least one guess."""
        tokens = 1.0 + np.stack(shapes.values)[1:, 1:]
        nodes = np.arange(1, tokens.shape[1] + 1)
        levels = np.arange(1, tokens.shape[0] + 1)
        seconds = self._verify_s.at(1.0) + self._verify_s.slope * nodes + self._level_s * levels[:, None]
        level, node = np.unravel_index(int((tokens / seconds).argmax()), tokens.shape)
        return int(node) + 1, int(level) + 1

    def _count(self, round: Round) -> None:
        """Every node that the target was asked after tried all its children, and at most one of them stood."""
        tree, path = round.tree, round.verdict.path
        asked = (ROOT, *path) if round.verdict.bonus is not None else (ROOT, *path)[:-1]
        for node, stood in zip(asked, [*path, None], strict=False):
            for rank, child in enumerate(tree.children(node)):
                if rank == len(self._tries):
                    self._tries.append(0)
                    self._hits.append(0)
                self._tries[rank] += 1
                self._hits[rank] += child == stood
