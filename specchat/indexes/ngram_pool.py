"""A bounded collection of n-grams, asked how a run of tokens goes on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

_MOST_RUNS = 65536
"""Runs whose continuations are kept; those that were not added for longest go first."""


class NgramPool:
    """N-grams by their beginnings: for every beginning the tokens that may follow, the latest last.

    Args:
        length: tokens of an n-gram.
        kept: how many different tokens are kept for one beginning.
    """

    def __init__(self, length: int, kept: int) -> None:
        self.length = length
        self._kept = kept
        self._after: dict[tuple[int, ...], dict[int, None]] = {}

    def add(self, ngram: Sequence[int]) -> None:
        """Keep an n-gram; the oldest continuation of the same beginning goes where there are too many."""
        for end in range(1, len(ngram)):
            run = tuple(ngram[:end])
            followers = self._after.pop(run, None) or {}
            self._after[run] = followers
            followers.pop(ngram[end], None)
            followers[ngram[end]] = None
            if len(followers) > self._kept:
                del followers[next(iter(followers))]
        while len(self._after) > _MOST_RUNS:
            del self._after[next(iter(self._after))]

    def continuations(self, run: Sequence[int], limit: int) -> list[tuple[int, int]]:
        """Up to `limit` tokens that may follow `run`, each with the length of the n-gram's beginning that it follows.

        The longest beginning first, of equals the latest n-gram first.
        """
        found: dict[int, int] = {}
        for token, size in self._following(run):
            if len(found) >= limit:
                break
            found.setdefault(token, size)
        return list(found.items())

    def clear(self) -> None:
        """Forget all n-grams."""
        self._after.clear()

    def _following(self, run: Sequence[int]) -> Iterator[tuple[int, int]]:
        for size in range(min(self.length - 1, len(run)), 0, -1):
            for token in reversed(self._after.get(tuple(run[len(run) - size :]), {})):
                yield token, size
