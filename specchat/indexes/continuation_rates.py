"""How often continuations of runs of tokens were right, by the length of the run and the rank of the continuation."""

from __future__ import annotations

from collections.abc import Sequence

from specchat.indexes.learnt_rates import LearntRates

RANKS = 4
"""Ranks that have a rate of their own; continuations of higher ranks share the last."""


class ContinuationRates:
    """The rates of continuations, each given as a token and the length of the run that it follows."""

    def __init__(self) -> None:
        self._rates = LearntRates()

    def learn(self, found: Sequence[tuple[int, int]], following: int) -> None:
        """Count for each of at most RANKS continuations, in order, whether it was the token that followed."""
        for rank, (token, size) in enumerate(found):
            self._rates.count((size, rank), token == following)

    def rate(self, size: int, rank: int) -> float:
        """How often the continuation of this rank was right after a run of this length."""
        rank = min(rank, RANKS - 1)
        return self._rates.rate((size, rank), claimed=size / float(size + 1) ** (rank + 1))
