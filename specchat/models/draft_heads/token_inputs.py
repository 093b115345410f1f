"""What a trained network takes of tokens, computed once for each token."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from specchat.models.cpu_kernels.hydra import TokenTable

_MOST_OTHERS = 2048
"""Rows of so many tokens are kept besides those that are known from the beginning."""

_AT_ONCE = 1024
"""Rows that are made in one call while loading."""


class TokenInputs:
    """Rows by token: of some tokens from the beginning, of others once they are asked for.

    The table stays where it is, so that compiled code may keep its address.
    """

    def __init__(
        self, write: Callable[[Sequence[int], Tensor], None], vocab_size: int, width: int, known: Sequence[int]
    ) -> None:
        """`write` makes rows (n, width) of n tokens below `vocab_size`; those of `known` are made now."""
        rows = torch.empty(len(known) + _MOST_OTHERS, width)
        for first in range(0, len(known), _AT_ONCE):
            some = known[first : first + _AT_ONCE]
            write(some, rows[first : first + len(some)])
        self._write, self._known = write, np.asarray(known, np.int64)
        self._table = TokenTable(rows, np.full(vocab_size, -1, np.int32))
        self._places = self._table.places.data  # the same: asking numpy for a number takes ten times as long
        self._count = 0
        self._forget()

    def of(self, tokens: Sequence[int]) -> Tensor:
        """(n, d) a row for each token."""
        parts = [self._of(tokens[at : at + _MOST_OTHERS]) for at in range(0, len(tokens), _MOST_OTHERS)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def within(self, tokens: Sequence[int]) -> TokenTable:
        """The table, which has the rows of these tokens, `_MOST_OTHERS` at most, until others are asked for."""
        places = self._places
        for token in tokens:
            if places[token] < 0:
                self._learn(tokens)
                break
        return self._table

    def _of(self, tokens: Sequence[int]) -> Tensor:
        table = self.within(tokens)
        return table.rows[torch.from_numpy(table.places[list(tokens)]).long()]

    def _learn(self, tokens: Sequence[int]) -> None:
        places = self._places
        new = [token for token in dict.fromkeys(tokens) if places[token] < 0]
        if self._count + len(new) > len(self._known) + _MOST_OTHERS:
            self._forget()
            new = [token for token in dict.fromkeys(tokens) if places[token] < 0]
        first, self._count = self._count, self._count + len(new)
        self._write(new, self._table.rows[first : self._count])
        for place, token in enumerate(new, first):
            places[token] = place

    def _forget(self) -> None:
        """Only those that are known from the beginning."""
        self._count = len(self._known)
        self._table.places[:] = -1
        self._table.places[self._known] = range(self._count)
