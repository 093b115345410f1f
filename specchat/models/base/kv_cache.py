"""Keys and values of everything read so far: rows written in place, gaps closed after a round."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specchat.core.transfer import sent
from specchat.models.base.large_pages import zeros

_FIRST_CAPACITY = 1024


class KVCache:
    """Preallocated rows for all layers of one text. Grows by doubling, never inside a round of usual size.

    It does not know which rows are valid: its owner counts them. Rows hold zeros or stale, finite values.
    """

    def __init__(self, layers: int, max_rows: int, keys_together: int = 1) -> None:
        """Empty, for one text.

        Args:
            keys_together: keys of so many rows lie side by side, for those who read them so: pair of values by pair of
                values, even rows before odd ones. Values then lie in pairs of rows, value by value, odd rows first.
        """
        self._layers = layers
        self._max_rows = max_rows
        self._together = keys_together
        self._keys: Tensor | None = None  # (layers, heads, capacity, head_dim), or as `keys_together` says
        self._values: Tensor | None = None
        self._start = 0

    @property
    def capacity(self) -> int:
        return 0 if self._keys is None else self._keys.shape[2]

    def write_at(self, row: int) -> None:
        """The next pass writes its rows from here on."""
        self._start = row

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Write one layer's new rows and return all its rows up to the last new one, as transformers' layers ask.

        Args:
            keys, values: (1, heads, n, head_dim).

        Returns:
            (1, heads, start + n, head_dim) each, views into the cache.
        """
        end = self._start + keys.shape[2]
        stored_keys, stored_values = self.room_for(end, keys[0].transpose(0, 1))
        stored_keys[layer, :, self._start : end] = keys[0]
        stored_values[layer, :, self._start : end] = values[0]
        return stored_keys[layer, :, :end].unsqueeze(0), stored_values[layer, :, :end].unsqueeze(0)

    def keep_rows_(self, start: int, rows: Sequence[int]) -> int:
        """Keep these rows behind the first `start`, forget what lies between and after. In place.

        Verification wrote one row per node, in the order the nodes were read, so the accepted rows lie scattered
        among rejected ones. This closes the gaps. Rows past the returned length are stale and are overwritten by
        the next round.

        Args:
            start: rows in use before the tree.
            rows: rows to keep, ascending, each ≥ start.

        Returns:
            Rows in use afterwards: start + len(rows).
        """
        end = start + len(rows)
        moved = [(to, row) for to, row in zip(range(start, end), rows, strict=True) if to != row]
        if moved:
            assert self._keys is not None, "rows were written"
            assert self._values is not None, "rows were written"
            to, source = sent(torch.tensor(moved), self._keys.device).t()
            self._move(self._keys, self._values, to, source)
        return end

    def room_for(self, rows: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values, (layers, heads, capacity, head_dim) each, with room for at least so many rows.

        Args:
            like: (…, heads, head_dim), whose format and device the cache takes when it is made.
        """
        if self._keys is None or self._values is None or rows > self.capacity:
            # Trees may reach past the context's end by some rows, hence the slack.
            wanted = max(rows, min(max(_FIRST_CAPACITY, 2 * self.capacity), self._max_rows + 512))
            wanted += -wanted % self._together
            self._keys = self._grown(self._keys, like, wanted)
            self._values = self._grown(self._values, like, wanted)
        return self._keys, self._values

    def _move(self, keys: Tensor, values: Tensor, to: Tensor, source: Tensor) -> None:
        if self._together == 1:
            keys[:, :, to], values[:, :, to] = keys[:, :, source], values[:, :, source]
            return
        layers, heads, capacity, head_dim = keys.shape
        half = self._together // 2
        keys = keys.view(layers, heads, -1, head_dim // 2, 2, half, 2).permute(0, 1, 2, 4, 5, 3, 6)
        values = values.view(layers, heads, capacity // 2, head_dim, 2).transpose(3, 4)
        keys[:, :, to // self._together, to % 2, to % self._together // 2] = keys[
            :, :, source // self._together, source % 2, source % self._together // 2
        ]
        values[:, :, to // 2, 1 - to % 2] = values[:, :, source // 2, 1 - source % 2]

    def _grown(self, old: Tensor | None, like: Tensor, capacity: int) -> Tensor:
        new = zeros((self._layers, like.shape[-2], capacity, like.shape[-1]), like)
        if old is not None:
            new[:, :, : old.shape[2]] = old
        return new
