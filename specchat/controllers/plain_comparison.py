"""When a round without guesses is due, so that rounds with guesses have a recent one to be compared with."""

from __future__ import annotations

_FIRST, _MOST = 6, 96
"""Rounds with guesses before the first comparison, and at most between two."""


class PlainComparison:
    """Counts the rounds with guesses since the last plain one; each comparison doubles the distance to the next."""

    def __init__(self) -> None:
        self._rounds, self._distance = 0, _FIRST

    @property
    def due(self) -> bool:
        """Whether enough rounds with guesses have passed."""
        return self._rounds >= self._distance

    def add(self, rounds: int, plain: bool) -> None:
        """Count this many rounds; `plain` says whether the last one was plain."""
        if not plain:
            self._rounds += rounds
        elif self._rounds:
            self._rounds, self._distance = 0, min(_MOST, 2 * self._distance)
