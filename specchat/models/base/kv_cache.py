"""Keys and values of everything read so far: rows written in place, gaps closed after a round."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from specchat.core.transfer import sent
from specchat.models.base.large_pages import zeros

_FIRST_CAPACITY = 1024


class KVCache:
    """Preallocated rows for all layers of one text. Grows by doubling, never inside a round of usual size.

    It does not know which rows are valid: its owner counts them. Rows hold zeros or stale, finite values.
    """

    def __init__(self, layers: Collection[int], max_rows: int, keys_together: int = 1) -> None:
        """Empty, for one text.

        Args:
            layers: numbers of the layers that keep keys and values.
            keys_together: keys of so many rows lie side by side, value by value, for those who read them so.
        """
        self.place_of = {layer: place for place, layer in enumerate(sorted(layers))}
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
        place = self.place_of[layer]
        stored_keys[place, :, self._start : end] = keys[0]
        stored_values[place, :, self._start : end] = values[0]
        return stored_keys[place, :, :end].unsqueeze(0), stored_values[place, :, :end].unsqueeze(0)

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
        if moved and self.place_of:
            assert self._keys is not None, "rows were written"
            assert self._values is not None, "rows were written"
            to, source = sent(torch.tensor(moved), self._keys.device).t()
            keys, values = self._by_row(self._keys), self._values
            keys[:, :, to // self._together, to % self._together] = keys[
                :, :, source // self._together, source % self._together
            ]
            values[:, :, to] = values[:, :, source]
        return end

    def copy_rows_(self, source: KVCache, rows: Sequence[int]) -> None:
        """Copy these rows of another cache to the front, for the layers that this one has. In place."""
        if not rows or not self.place_of:
            return
        assert source._keys is not None, "rows were written"
        assert source._values is not None, "rows were written"
        together, heads = self._together, source._values.shape[1]
        blocks = -(-len(rows) // together)
        own_keys, own_values = self.room_for(blocks * together, source._values[0].transpose(0, 1))
        wanted = torch.tensor(rows)
        among = torch.unique(wanted // together)  # keys that lie together are moved together
        inside = torch.searchsorted(among, wanted // together) * together + wanted % together
        wanted, among, inside = (sent(index, own_keys.device) for index in (wanted, among, inside))
        for layer, place in self.place_of.items():
            theirs = source.place_of[layer]
            keys = source._by_row(source._keys)[theirs].index_select(1, among).flatten(1, 2).index_select(1, inside)
            filled = F.pad(keys, (0, 0, 0, blocks * together - len(rows)))
            self._by_row(own_keys)[place, :, :blocks] = filled.view(heads, blocks, together, -1)
            own_values[place, :, : len(rows)] = source._values[theirs].index_select(1, wanted)

    def room_for(self, rows: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values, (layers, heads, capacity, head_dim) each, with room for at least so many rows.

        A layer's number may be higher than its place among them: see `place_of`.

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

    def _by_row(self, keys: Tensor) -> Tensor:
        """(layers, heads, capacity / together, together, head_dim), a view."""
        layers, heads, capacity, head_dim = keys.shape
        together = self._together
        return keys.view(layers, heads, capacity // together, head_dim, together).transpose(3, 4)

    def _grown(self, old: Tensor | None, like: Tensor, capacity: int) -> Tensor:
        new = zeros((len(self.place_of), like.shape[-2], capacity, like.shape[-1]), like)
        if old is not None:
            new[:, :, : old.shape[2]] = old
        return new
