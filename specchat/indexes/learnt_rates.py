"""How often guesses of a kind were right, beginning with what is claimed of them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

_HABIT = 8.0
"""Weight of the rate claimed at the beginning, in observed trials."""


def rate(hits: float, trials: float, claimed: float) -> float:
    """Hits over trials, with the claimed rate as some trials that came before; joined_guesses.h has the same."""
    return (hits + _HABIT * claimed) / (trials + _HABIT)


class LearntRates:
    """For every kind of guess its rate."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, tuple[int, int]] = {}  # hits, trials

    def count(self, kind: Hashable, right: bool) -> None:
        hits, trials = self._seen.get(kind, (0, 0))
        self._seen[kind] = hits + right, trials + 1

    def rate(self, kind: Hashable, claimed: float) -> float:
        """How often such guesses are right, above 0 where `claimed` is."""
        return rate(*self._seen.get(kind, (0, 0)), claimed)


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
