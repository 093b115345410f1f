"""Chooses the tree's size by a line fitted to recent rounds' times and by how often guesses of each rank stood."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from specchat.controllers.options import CostModelOptions
from specchat.controllers.round_statistics import Average
from specchat.core.budget import Budget
from specchat.core.context import Context
from specchat.core.costs import Costs
from specchat.core.round import Round
from specchat.core.seams import Controller
from specchat.core.tree import ROOT
from specchat.indexes.running_estimates import RecentLinearFit

_PRIOR_RATES = (0.5, 0.15, 0.08, 0.05, 0.04, 0.03, 0.02, 0.015)
"""How often the best, second best, … guess is taken to stand until that is measured."""

_DISTURBED = 3.0
"""Cap on a pass's time, as a multiple of what the line predicts: a longer pass was disturbed."""


class _Size(NamedTuple):
    """The likeliest nodes of a tree, so many of them."""

    nodes: int
    depth: int
    width: int
    tokens: float
    """What a round with this tree is expected to emit."""


class CostModel(Controller):
    """Plan the number of nodes with the most expected tokens per predicted second.

    A verification of n rows takes a + b n, by least squares in which every round counts less than the one after it;
    a level of drafting takes what levels took lately. How often the guess of each rank stands is measured for every
    depth. The likeliest nodes are then taken one by one, which gives the expected tokens of the best tree of every
    size; where the best size is 0 the round is plain, and a trial follows now and then.

    Reference: Zhong et al., ProPD, arXiv:2402.13485. Differs: drafting has a cost of its own, ranks are counted by
    depth instead of by head, and the policy decides which of the drafter's guesses become the nodes.
    """

    def __init__(self, options: CostModelOptions, budget: Budget, costs: Costs | None = None) -> None:
        self._ceiling = budget
        self._memory, self._probe = options.memory, options.probe
        self._verify_s = RecentLinearFit(1.0 - 1.0 / options.memory)
        for rows, seconds in costs.verify if costs else ():
            self._verify_s.add(rows, seconds)
        self._timed = costs is not None
        self._level_s = Average(options.memory, 0.0)
        self._learn_s = Average(options.memory, 0.0)
        self._rows_each = Average(options.memory, 1.0)  # rows that come with a node, extra rows included
        self._rates: list[list[Average]] = []  # by depth, by rank
        self._rounds = self._plain_rounds = 0

    def plan(self, context: Context) -> Budget:
        ceiling = self._ceiling
        if ceiling.nodes == 0:
            return dataclasses.replace(ceiling, why="no nodes: fixed by you")
        if not self._verify_s.known:  # the line needs passes of two sizes
            nodes = ceiling.nodes if self._rounds % 2 else max(1, ceiling.nodes // 2)
            return dataclasses.replace(ceiling, nodes=nodes, why="measuring what nodes cost")
        best = self.best_size()
        if best.nodes == 0:
            if self._plain_rounds < self._probe:
                return Budget(nodes=0, depth=0, width=0, why="no guess pays for its row")
            return Budget(1, 1, 1, why="a trial: may guesses pay again?")
        why = f"{best.tokens:.1f} tokens expected of {best.nodes} nodes"
        return Budget(best.nodes, best.depth, best.width, why=why)

    def observe(self, round: Round) -> None:
        tree, timings = round.tree, round.timings
        self._rounds += 1
        self._plain_rounds = 0 if round.budget.nodes else self._plain_rounds + 1
        seconds = timings.verify_s
        if self._timed:
            seconds = min(seconds, _DISTURBED * self._verify_s.at(round.rows))
        self._verify_s.add(round.rows, seconds)
        self._timed = True
        if tree.drafted:
            self._rows_each.add((round.rows - 1) / tree.drafted)
            self._level_s.add(timings.draft_s / max(tree.depths))
            self._learn_s.add(timings.learn_s)
            self._count(round)

    def best_size(self) -> _Size:
        """The size with the most expected tokens per predicted second; of equal ones the smallest."""
        return max(self._sizes(), key=lambda size: size.tokens / self.predicted_s(size.nodes, size.depth))

    def predicted_s(self, nodes: int, depth: int) -> float:
        verify_s = self._verify_s.at(1.0 + nodes * self._rows_each.value)
        return verify_s + depth * self._level_s.value + (self._learn_s.value if nodes else 0.0)

    def rates(self) -> list[list[float]]:
        """For every depth and rank, how often that guess stands below a node that stood.

        What was not measured is as at the depth before, and at the first as a prior says.
        """
        found: list[list[float]] = []
        last = [_PRIOR_RATES[min(rank, len(_PRIOR_RATES) - 1)] for rank in range(self._ceiling.width)]
        for depth in range(self._ceiling.depth):
            seen = self._rates[depth] if depth < len(self._rates) else []
            last = [seen[rank].given(rate) if rank < len(seen) else rate for rank, rate in enumerate(last)]
            found.append(last)
        return found

    def _sizes(self) -> Iterator[_Size]:
        """The tree of the likeliest nodes, of every size from none to as many as the user allows."""
        ceiling, rates = self._ceiling, [_falling(rates) for rates in self.rates()]
        tokens, deepest, widest = 1.0, 0, 0
        yield _Size(0, 0, 0, tokens)
        waiting = [(-rates[0][0], 0, 0, 1.0)] if rates and rates[0] else []  # −probability, depth, rank, the parent's
        for nodes in range(1, ceiling.nodes + 1):
            if not waiting:
                return
            likely, depth, rank, above = heapq.heappop(waiting)
            tokens, deepest, widest = tokens - likely, max(deepest, depth + 1), max(widest, rank + 1)
            yield _Size(nodes, deepest, widest, tokens)
            if rank + 1 < len(rates[depth]):
                heapq.heappush(waiting, (-above * rates[depth][rank + 1], depth, rank + 1, above))
            if depth + 1 < len(rates):
                heapq.heappush(waiting, (likely * rates[depth + 1][0], depth + 1, 0, -likely))

    def _count(self, round: Round) -> None:
        tree, path = round.tree, round.verdict.path
        asked = (ROOT, *path) if round.verdict.bonus is not None else (ROOT, *path)[:-1]
        for depth, (node, stood) in enumerate(zip(asked, [*path, None], strict=False)):
            if depth == len(self._rates):
                self._rates.append([])
            for rank, child in enumerate(tree.children(node)):
                if rank == len(self._rates[depth]):
                    self._rates[depth].append(Average(self._memory, 0.0))
                self._rates[depth][rank].add(float(child == stood))


def _falling(rates: Sequence[float]) -> list[float]:
    """The highest first; of several guesses at most one stands, so they sum to at most 1."""
    most = max(1.0, sum(rates))
    return sorted((rate / most for rate in rates), reverse=True)
