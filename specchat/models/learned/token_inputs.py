"""What a trained network takes of tokens, computed once for each token."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

_MOST_TOKENS = 8192


class TokenInputs:
    """Rows by token, kept for the tokens that were asked for."""

    def __init__(self, compute: Callable[[list[int]], Tensor]) -> None:
        """None yet; `compute` makes (n, d) rows of tokens."""
        self._compute = compute
        self._place: dict[int, int] = {}
        self._rows = torch.empty(0, 0)

    def of(self, tokens: Sequence[int]) -> Tensor:
        """(n, d) a row for each token."""
        table, places = self.within(tokens)
        return table[places]

    def within(self, tokens: Sequence[int]) -> tuple[Tensor, list[int]]:
        """A table (m, d) that has these tokens' rows, and where; valid until others are asked for."""
        new = [token for token in dict.fromkeys(tokens) if token not in self._place]
        if new:
            self._learn(new, tokens)
        return self._rows, [self._place[token] for token in tokens]

    def _learn(self, new: list[int], tokens: Sequence[int]) -> None:
        if len(self._place) + len(new) > _MOST_TOKENS:
            self._place.clear()
            new = list(dict.fromkeys(tokens))
        first, end = len(self._place), len(self._place) + len(new)
        rows = self._compute(new)
        if end > len(self._rows):
            room = rows.new_zeros(max(end, 2 * len(self._rows), 256), rows.shape[1])
            if first:
                room[:first] = self._rows[:first]
            self._rows = room
        self._rows[first:end] = rows
        self._place.update(zip(new, range(first, end), strict=True))
