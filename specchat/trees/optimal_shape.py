"""The best static tree for given acceptance rates by rank, by dynamic programming over nodes and depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from specchat.trees.options import RankPath

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
