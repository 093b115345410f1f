"""How often tokens were used, as a bounded list that can be kept."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence

import numpy as np

_MOST = 16384
"""Tokens that are remembered: more than a user's texts have of them that are not frequent anyway."""

_FORMAT = np.dtype("<u4")


class TokenCounts:
    """Tokens with how often they came. Of too many, those that came least are forgotten."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._counts: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, tokens: Sequence[int]) -> None:
        """These came once more."""
        self._counts.update(tokens)
        if len(self._counts) > 2 * _MOST:
            self._counts = Counter(dict(self._ranked()))

    def ranked(self) -> list[int]:
        """The tokens, those that came most often first, of equals the one with the lower number."""
        return [token for token, _ in self._ranked()]

    def to_bytes(self) -> bytes:
        """The tokens and their counts; the same counts give the same bytes."""
        return np.array(self._ranked(), _FORMAT).tobytes()

    def restore(self, data: bytes) -> None:
        """Go on from these bytes, or from nothing where there are none.

        Raises:
            ValueError: `to_bytes` did not make them for such a vocabulary.
        """
        if len(data) % (2 * _FORMAT.itemsize) or len(data) > 2 * _FORMAT.itemsize * _MOST:
            raise ValueError(f"{len(data)} bytes are not token counts")
        tokens, counts = np.frombuffer(data, _FORMAT).reshape(-1, 2).T
        if len(np.unique(tokens)) < len(tokens) or (tokens >= self._vocab_size).any():
            raise ValueError("token counts of another vocabulary")
        self._counts = Counter(dict(zip(tokens.tolist(), counts.tolist(), strict=True)))

    def _ranked(self) -> list[tuple[int, int]]:
        """At most `_MOST` of (token, count)."""
        fewer = [(-count, token) for token, count in self._counts.items()]
        return [(token, -less) for less, token in heapq.nsmallest(_MOST, fewer)]
