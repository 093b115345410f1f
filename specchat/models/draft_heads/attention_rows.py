"""Keys and values while a network drafts, and the attention to them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


class AttentionRows:
    """Keys and values of rows that were read: those of a text's entries, and behind them those of one tree."""

    def __init__(self, kv_heads: int, head_dim: int) -> None:
        self._keys = torch.empty(kv_heads, 0, head_dim)
        self._values = torch.empty(kv_heads, 0, head_dim)

    def write(self, place: int, keys: Tensor, values: Tensor) -> None:
        """Keep (n, kv_heads, head_dim) keys and values of rows from `place` on, over what was there."""
        end = place + len(keys)
        self._room_for(end)
        self._keys[:, place:end] = keys.transpose(0, 1)
        self._values[:, place:end] = values.transpose(0, 1)

    def attend(self, place: int, queries: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
        """(n, heads · head_dim) what rows attend to, after they were written from `place` on.

        Args:
            queries: (n, heads, head_dim).
            keys, values: (n, kv_heads, head_dim).
            seen: (n, place + n) bool, what each row attends to.
        """
        self.write(place, keys, values)
        end = place + len(keys)
        return _attend(queries, self._keys[:, :end], self._values[:, :end], seen)

    def _room_for(self, rows: int) -> None:
        if rows > self._keys.shape[1]:
            more = max(rows, 2 * self._keys.shape[1], 512) - self._keys.shape[1]
            self._keys, self._values = (F.pad(kept, (0, 0, 0, more)) for kept in (self._keys, self._values))


def _attend(queries: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
    """(n, heads · head_dim). The heads that share keys are rows of one product, so that no keys are copied.

    Args:
        queries: (n, heads, head_dim).
        keys, values: (kv_heads, rows, head_dim).
        seen: (n, rows) bool.
    """
    (rows, heads, size), shared = queries.shape, len(keys)
    grouped = queries.view(rows, shared, heads // shared, size).transpose(0, 1).reshape(shared, -1, size)
    scores = torch.bmm(grouped * size**-0.5, keys.transpose(1, 2))
    scores.view(shared, rows, -1, keys.shape[1]).masked_fill_(~seen[:, None], -torch.inf)
    mixed = torch.bmm(scores.softmax(dim=-1), values)
    return mixed.view(shared, rows, -1, size).transpose(0, 1).reshape(rows, heads * size)
