"""Sequoia: the optimal static tree for the acceptance rates and the costs that were measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from specchat.core.budget import Budget
from specchat.core.context import Context
from specchat.core.round import Round
from specchat.core.seams import Drafter, TreePolicy
from specchat.core.tree import ROOT, TokenTree
from specchat.indexes.running_estimates import RecentLinearFit
from specchat.trees.given_shapes import StaticShape, grow_by_ranks
from specchat.trees.options import RankPath, SequoiaOptions

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
        self._tries, self._hits = Counter[int](), Counter[int]()  # by rank
        self._verify_s = RecentLinearFit()
        self._level_s = 0.0
        self._rounds = 0
        self._known: dict[tuple[int, int, int, bool], StaticShape] = {}

    def grow(self, drafter: Drafter, context: Context, budget: Budget) -> TokenTree:
        return grow_by_ranks(drafter, context, budget, self._children(budget))

    def observe(self, round: Round) -> None:
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
            found.append((self._hits[rank] + _PRIOR_TRIES * prior) / (self._tries[rank] + _PRIOR_TRIES))
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
                self._tries[rank] += 1
                self._hits[rank] += child == stood


Floats = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.int64]]


class OptimalShapes:
    """For every number of nodes and every depth the static tree with the most expected accepted tokens.

    A child of rank k stands with probability `rates[k]` if its parent does, and siblings never both; a node has no
    child of rank k without those of better ranks. Rates need not fall with the rank. With F_d(n) for the best n nodes
    below a node that may have d levels, and G_d,k(n) for its children from rank k on,

        G_d,k(n) = max(0, max over m of  rates[k] (1 + F_{d−1}(m − 1)) + G_d,k+1(n − m))    and    F_d = G_d,0.

    Reference: Chen et al., Sequoia, arXiv:2402.12374.
    """

    def __init__(self, rates: Sequence[float], nodes: int, depth: int) -> None:
        self.values: list[Floats] = [np.zeros(nodes + 1)]  # [depth][nodes]: expected accepted tokens
        self._sizes: list[list[Ints]] = [[]]  # [depth][rank][nodes left]: nodes of that child's subtree, 0 for none
        level = _Level(rates, nodes)
        for done in range(depth):
            value, sizes = level.above(self.values[-1])
            self.values.append(value)
            self._sizes.append(sizes)
            if done and np.array_equal(value, self.values[-2]):  # what is deeper is this again
                self.values += [value] * (depth - done - 1)
                self._sizes += [sizes] * (depth - done - 1)
                break

    def children(self, nodes: int, depth: int) -> Mapping[RankPath, int]:
        """How many children every rank path of the best tree gets; () is the root."""
        counts: dict[RankPath, int] = {}
        waiting: list[tuple[RankPath, int, int]] = [((), depth, nodes)]
        for path, levels, left in waiting:  # grows while it is walked
            for rank, sizes in enumerate(self._sizes[levels]):
                size = int(sizes[left])
                if size == 0:
                    break
                counts[path] = rank + 1
                waiting.append(((*path, rank), levels - 1, size - 1))
                left -= size
        return counts


class _Level:
    """F_d from F_{d−1}, in arrays that serve all levels: a level takes as many steps as there are ranks."""

    def __init__(self, rates: Sequence[float], nodes: int) -> None:
        self._rates = rates
        self._rows = np.arange(nodes + 1) * nodes  # where they begin in the flat totals
        padded = np.full(2 * nodes + 1, -np.inf)
        self._later = padded[nodes:]  # G of the ranks that follow
        # [n, m − 1] is G(n − m); no tree where m exceeds n
        windows = np.lib.stride_tricks.sliding_window_view(padded, max(nodes, 1))
        self._others = windows[: nodes + 1, ::-1] if nodes else np.empty((1, 0))
        self._totals = np.empty((nodes + 1, nodes))

    def above(self, below: Floats) -> tuple[Floats, list[Ints]]:
        """F_d, and how many nodes every rank's subtree then has: (nodes + 1,) each."""
        later, totals, sizes = self._later, self._totals, []
        gains = 1.0 + below[:-1]
        later[:] = 0.0
        for rate in reversed(self._rates) if len(gains) else ():
            np.add(self._others, rate * gains, out=totals)
            best = totals.argmax(axis=1)
            np.maximum(totals.take(self._rows + best), 0.0, out=later)
            sizes.append(np.where(later > 0.0, best + 1, 0))
        return later.copy(), sizes[::-1]
