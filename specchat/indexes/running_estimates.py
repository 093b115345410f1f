"""Estimates that follow what is counted or timed: shares of hits, and lines in which recent points count more."""

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


_FLAT = 1e-3
"""Variance of x, relative to its square, below which the measurements say nothing about the slope."""

_COUNTED_ALIKE = 0.02
"""Variance of an x that is counted (steps, rows) below which the measurements say nothing about the slope."""


class RecentLinearFit:
    """y = a + b x by weighted least squares; each new point makes all earlier ones count `memory` times as much.

    Once the x stop varying, the slope stays what it was and the line only moves up and down. It never falls.
    """

    def __init__(self, memory: float = 0.95) -> None:
        self._memory = memory
        self._weight = self._x = self._y = self._xx = self._xy = 0.0
        self.slope = 0.0  # what one more x adds to y
        self.known = False

    def add(self, x: float, y: float) -> None:
        memory = self._memory
        self._weight = self._weight * memory + 1.0
        self._x = self._x * memory + x
        self._y = self._y * memory + y
        self._xx = self._xx * memory + x * x
        self._xy = self._xy * memory + x * y
        if self._varied(variance := self._weight * self._xx - self._x * self._x):
            self.slope = max(0.0, (self._weight * self._xy - self._x * self._y) / variance)
            self.known = True

    def _varied(self, variance: float) -> bool:
        """Whether x varied enough to tell the slope, by its variance times the square of the weights."""
        return variance > _FLAT * self._x * self._x

    def at(self, x: float) -> float:
        """The line's y; there must have been a measurement."""
        return (self._y + self.slope * (x * self._weight - self._x)) / self._weight


class RecentCostFit(RecentLinearFit):
    """The same for costs, which do not begin below 0. While x hardly varies, y is taken to be in proportion to it."""

    def add(self, x: float, y: float) -> None:
        """Take in one measurement, neither of both below 0."""
        super().add(x, y)
        in_proportion = self._y / self._x if self._x > 0.0 else 0.0
        varied = self._varied(self._weight * self._xx - self._x * self._x)
        self.slope = min(self.slope, in_proportion) if varied else in_proportion

    def at(self, x: float) -> float:
        """The line's y; 0 before the first measurement."""
        return super().at(x) if self._weight else 0.0

    def _varied(self, variance: float) -> bool:
        return variance > _COUNTED_ALIKE * self._weight * self._weight
