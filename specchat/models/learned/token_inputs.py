"""What a trained network takes of tokens, computed once for each token."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from specchat.models.native.token_table import TokenTable

_MOST_TOKENS = 8192


class TokenInputs:
    """Rows by token, kept for the tokens that were asked for."""

    def __init__(self, compute: Callable[[list[int]], Tensor]) -> None:
        """None yet; `compute` makes (n, d) rows of tokens."""
        self._compute = compute
        self._count = 0
        self._table = TokenTable(torch.empty(0, 0), np.full(0, -1, np.int32))

    def of(self, tokens: Sequence[int]) -> Tensor:
        """(n, d) a row for each token."""
        table = self.within(tokens)
        return table.rows[torch.from_numpy(table.places[list(tokens)]).long()]

    def within(self, tokens: Sequence[int]) -> TokenTable:
        """A table that has these tokens' rows; valid until others are asked for."""
        places = self._table.places
        if new := [token for token in tokens if token >= len(places) or places[token] < 0]:
            self._learn(list(dict.fromkeys(new)), tokens)
        return self._table

    def _learn(self, new: list[int], tokens: Sequence[int]) -> None:
        rows, places = self._table.rows, self._table.places
        if self._count + len(new) > _MOST_TOKENS:
            places[:], self._count = -1, 0
            new = list(dict.fromkeys(tokens))
        computed = self._compute(new)
        if (most := max(new)) >= len(places):
            places = np.concatenate([places, np.full(2 * most + 1 - len(places), -1, np.int32)])
        first, end = self._count, self._count + len(new)
        if end > len(rows):
            room = computed.new_zeros(max(end, 2 * len(rows), 256), computed.shape[1])
            if first:
                room[:first] = rows[:first]
            rows = room
        rows[first:end] = computed
        places[new] = range(first, end)
        self._table, self._count = TokenTable(rows, places), end
