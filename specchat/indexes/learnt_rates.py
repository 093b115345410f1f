"""How often guesses of a kind were right, beginning with what is claimed of them."""

from __future__ import annotations

from collections.abc import Hashable

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
        """A guess of this kind was right or wrong."""
        hits, trials = self._seen.get(kind, (0, 0))
        self._seen[kind] = hits + right, trials + 1

    def rate(self, kind: Hashable, claimed: float) -> float:
        """How often such guesses are right, above 0 where `claimed` is."""
        return rate(*self._seen.get(kind, (0, 0)), claimed)
