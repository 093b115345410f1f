"""Memory that grows with a text: keys and values of everything read so far, and tables of rotations by position."""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Collection, Sequence
from typing import Protocol
from weakref import WeakSet

import torch
from torch import Tensor

from specchat.core.device_copy import to_device
from specchat.models.decoder.shape import Shape

_PRIVATE: dict[str, int] = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}


def zeroed_bytes(size: int) -> Tensor:
    """(size,) uint8 on the processor, all zero; freed with the last reference to it.

    In large pages: what a pass reads from end to end takes half as long to read (12 against 22 GB/s for one thread on a
    Xeon), because the processor has fewer pages to find.
    """
    # Private memory: what processes could share never comes in large pages.
    memory = mmap.mmap(-1, max(size, 1), **_PRIVATE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them: slower, not wrong
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)[:size]


def zeros(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """(shape[0], …, shape[-1]) zeros in the format of `like`, on its device."""
    if like.device.type != "cpu":
        return like.new_zeros(shape)
    return zeroed_bytes(math.prod(shape) * like.element_size()).view(like.dtype).view(shape)


_FIRST_CAPACITY = 1024

_STEP_ROWS = 256
"""Rows of the smallest step."""

KeysValues = tuple[Tensor, Tensor]
"""Keys and values, (…, heads, capacity, head_dim) each."""


class RowCopies(Protocol):
    """Copies rows where the cache is laid out for C."""

    def move_rows(self, keys: Tensor, values: Tensor, moves: Sequence[tuple[int, int]]) -> None:
        """Copy rows of all layers onto others, in place: (to, from) of each, ascending."""

    def copy_rows(self, to: KeysValues, of: KeysValues, rows: Sequence[int], first: int) -> None:
        """Copy rows of one layer of another cache: row i becomes a copy of `rows[i]`, from row `first` on."""


class KVCache:
    """Preallocated rows for all layers of one text. Grows by doubling, never inside a round of usual size.

    Where memory is limited and texts may be long it grows in small steps, but from half of the longest text on at once
    to that: while it grows, its old rows are there as well, and these take no more than they would with doubling.
    Where passes are recorded it is one allocation for the longest text: a recording knows addresses.

    It does not know which rows are valid: its owner counts them. Rows hold zeros or stale, finite values.

    Attributes:
        capacity: rows that there is memory for.
        key_interleave: keys of so many rows lie side by side.
        in_steps: whether it grows in small steps.
        in_one: whether it has room for the longest text as soon as it has any.
        keeps_states: whether it holds more of a text than a row for each token; see `RecurrentCache`.
        of_passes: what the network that reads and writes it keeps for the passes over it; goes with it.
    """

    keeps_states = False

    def __init__(
        self,
        layers: Collection[int],
        max_rows: int,
        key_interleave: int = 1,
        row_copies: RowCopies | None = None,
        beside: KVCache | None = None,
        in_one: bool = False,
    ) -> None:
        """Empty, for one text.

        Args:
            beside: another one of the same network, with which and with whose others this one shares memory.
            layers: numbers of the layers that keep keys and values.
            key_interleave: keys of so many rows lie side by side, as some kernels read them: pair of values by pair of
                values, even rows before odd ones. Values then lie in pairs of rows, value by value, odd rows first.
            row_copies: who copies rows where they lie together; None where each lies by itself.
        """
        self.place_of = {layer: place for place, layer in enumerate(sorted(layers))}
        self.max_rows = max_rows
        self.key_interleave = key_interleave
        self._row_copies = row_copies
        self._keys: Tensor | None = None  # (layers, heads, capacity, head_dim), or as `key_interleave` says
        self._values: Tensor | None = None
        self.capacity = 0
        self.in_steps: bool = beside is not None and beside.in_steps
        self.in_one = in_one
        self.of_passes: object = None
        self._start = 0
        self._of_network: WeakSet[KVCache] = WeakSet() if beside is None else beside._of_network
        self._of_network.add(self)

    def write_at(self, row: int) -> None:
        """The next pass writes its rows from here on."""
        self._start = row

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Write one layer's new rows, (1, heads, n, head_dim) each, and return views of all its rows up to the last new
        one, (1, heads, start + n, head_dim) each, as transformers' layers ask."""
        end = self._start + keys.shape[2]
        stored_keys, stored_values = self.room_for(end, keys[0].transpose(0, 1))
        place = self.place_of[layer]
        stored_keys[place, :, self._start : end] = keys[0]
        stored_values[place, :, self._start : end] = values[0]
        return stored_keys[place, :, :end].unsqueeze(0), stored_values[place, :, :end].unsqueeze(0)

    def resumable(self, tokens: int) -> int:
        """Where reading can go on of a text of which so many tokens are the same as of the text that is held."""
        return tokens

    def rewind_(self, tokens: int, rows: int) -> None:
        """Go back to a place that `resumable` named, in place; the text has so many rows there."""

    def mark_border(self) -> None:
        """A prompt has been read: a text that goes on otherwise may begin here."""

    def copy_states_(self, source: KVCache, tokens: int, rows: int) -> None:
        """Take over, in place, what another cache of the network holds besides rows of the first so many tokens."""

    def fill_states_(self, tokens: int) -> None:
        """Act as if so many tokens had been read, in place."""

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
        if not rows or rows[-1] == end - 1:  # ascending, so each lies where it belongs
            return end
        moved = [(to, row) for to, row in zip(range(start, end), rows, strict=True) if to != row]
        if self.place_of:
            move = _move_rows_ if self._row_copies is None else self._row_copies.move_rows
            move(*self._written, moved)
        return end

    def copy_rows_(
        self, source: KVCache, rows: Sequence[int], known: int = 0, layers: Collection[int] | None = None
    ) -> None:
        """Copy these rows of another cache to the front, but the first `known`, for these layers or all. In place."""
        if len(rows) <= known or not self.place_of:
            return
        for layer in self.place_of if layers is None else layers:
            self._copy_layer_(source, layer, slice(None), rows, known)

    def copy_rows_by_head_(self, source: KVCache, rows: Sequence[Sequence[int]], layer: int) -> None:
        """Copy rows of a layer of another cache to the front, for each head its own, all as many. In place."""
        for head, own in enumerate(rows):
            self._copy_layer_(source, layer, slice(head, head + 1), own, 0)

    def _copy_layer_(self, source: KVCache, layer: int, heads: slice, rows: Sequence[int], known: int) -> None:
        there = source._written
        place, theirs = self.place_of[layer], source.place_of[layer]
        keys, values = self.room_for(len(rows), there[1][0].transpose(0, 1))
        copy = _copy_rows_ if self._row_copies is None else self._row_copies.copy_rows
        copy(
            (keys[place][heads], values[place][heads]), (there[0][theirs][heads], there[1][theirs][heads]), rows, known
        )

    @property
    def _written(self) -> KeysValues:
        assert self._keys is not None, "rows were written"
        assert self._values is not None, "rows were written"
        return self._keys, self._values

    def block_bytes(self, rows: int, like: Tensor) -> int:
        """Bytes of so many rows' keys and values, where `like` is (heads, head_dim)."""
        return 2 * len(self.place_of) * rows * like.shape[-2] * like.shape[-1] * like.element_size()

    @torch.inference_mode()
    def block(self, first: int, rows: int) -> Tensor:
        """(bytes,) uint8 on the host: a copy of some rows as they lie. Both are multiples of `key_interleave`.

        Of rows past the capacity there are zeros.
        """
        there = min(rows, self.capacity - first)
        parts = [stored[:, :, first : first + there].cpu() for stored in self._written]
        if there < rows:
            parts = [torch.nn.functional.pad(part, (0, 0, 0, rows - there)) for part in parts]
        return torch.cat([part.reshape(-1).view(torch.uint8) for part in parts])

    @torch.inference_mode()
    def put_block_(self, first: int, rows: int, content: Tensor, like: Tensor) -> None:
        """Write (bytes,) uint8 that `block` gave of a cache of the same network over the same rows. In place.

        Args:
            like: (heads, head_dim), as `room_for` takes it.
        """
        of_all = (len(self.place_of), like.shape[-2], rows, like.shape[-1])
        for stored, part in zip(self.room_for(first + rows, like), content.view(like.dtype).chunk(2), strict=True):
            stored[:, :, first : first + rows] = part.view(of_all).to(stored.device)

    def room_for(self, rows: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values, (layers, heads, capacity, head_dim) each, with room for at least so many rows; a layer's
        place among them is its `place_of`. A cache takes the format and device of `like`, (…, heads, head_dim)."""
        if self._keys is None or self._values is None or rows > self.capacity:
            wanted = self._next_capacity(rows, self.capacity)
            self._keys = self._grown(self._keys, like, wanted)
            self._values = self._grown(self._values, like, wanted)
            self.capacity = wanted
        return self._keys, self._values

    def reserve_(self, like: Tensor) -> None:
        """Take the memory of one that is `in_one` now; `like` is (…, heads, head_dim), as `room_for` takes it."""
        if self.in_one:
            self.room_for(self.max_rows, like)

    def bytes_until(self, rows: int, like: Tensor, longest: int | None = None) -> int:
        """The most that all caches of the network take until each holds so many rows; never less than now.

        Args:
            like: (…, heads, head_dim), as `room_for` takes it.
            longest: instead of `max_rows`.
        """
        rows_bytes = like.shape[-2] * like.shape[-1] * like.element_size()
        return sum(cache._most_rows(rows, longest) * len(cache.place_of) for cache in self._of_network) * rows_bytes

    def _most_rows(self, rows: int, longest: int | None) -> int:
        """Rows of keys and of values that are there at most until there is room for so many.

        While it grows, half of what it had is still there beside all of what it gets.
        """
        capacity, most = self.capacity, 2 * self.capacity
        while capacity < rows:
            grown = self._next_capacity(min(rows, capacity + 1), capacity, longest)
            capacity, most = grown, max(most, 2 * grown + capacity)
        return most

    def _next_capacity(self, rows: int, capacity: int, longest: int | None = None) -> int:
        """How much room there is once so many rows are wanted and there is too little."""
        # Trees may reach past the context's end by some rows, hence the slack.
        most = (self.max_rows if longest is None else longest) + 512
        if self.in_one:
            wanted = max(rows, most)
        elif self.in_steps and most > 2 * _FIRST_CAPACITY:
            wanted = max(rows, capacity + max(_STEP_ROWS, capacity // 8))
            wanted = wanted if 2 * wanted <= most else max(rows, most)
        else:
            wanted = max(rows, min(max(_FIRST_CAPACITY, 2 * capacity), most))
        return wanted + -wanted % self.key_interleave

    def _grown(self, old: Tensor | None, like: Tensor, capacity: int) -> Tensor:
        new = zeros((len(self.place_of), like.shape[-2], capacity, like.shape[-1]), like)
        if old is not None:
            new[:, :, : old.shape[2]] = old
        return new


@torch.inference_mode()
def _move_rows_(keys: Tensor, values: Tensor, moves: Sequence[tuple[int, int]]) -> None:
    """Copy rows onto others where each lies by itself. In place."""
    to, source = to_device(torch.tensor(moves), keys.device).t()
    keys[:, :, to], values[:, :, to] = keys[:, :, source], values[:, :, source]


@torch.inference_mode()
def _copy_rows_(to: KeysValues, of: KeysValues, rows: Sequence[int], first: int) -> None:
    """Copy rows of another cache's layer where each lies by itself. In place."""
    wanted = to_device(torch.tensor(rows[first:]), of[0].device)
    for own, theirs in zip(to, of, strict=True):
        own[:, first : len(rows)] = theirs.index_select(1, wanted)


_FIRST_POSITIONS = 16384
"""More than most texts have, and for most models less than a hundredth of what the weights take."""

_PAST_CONTEXT = 1024
"""A tree may reach a little past the end of the context before it is cut."""


class RotationTables:
    """Tables for a decoder and for those made from it. They grow by doubling, and growing changes no bit of them.

    A configuration may claim a context of millions of tokens, and tables for all of it would take gigabytes.

    Attributes:
        context_tokens: the longest text; they grow little further.
        positions: how many there are rotations for.
    """

    def __init__(self, shape: Shape, device: torch.device, context_tokens: int) -> None:
        """Tables for the first positions."""
        self.context_tokens = context_tokens
        self._shape = shape
        self._device = device
        self._first = self.positions = min(_FIRST_POSITIONS, context_tokens + _PAST_CONTEXT)
        self._tables = self._computed(0, self._first)

    def until(self, end: int) -> tuple[Tensor | None, ...]:
        """For each kind of attention, (positions, 1, head_dim / 2) complex64, with at least `end` positions.

        None for a kind that rotates nothing. The same tuple for as long as nothing has grown.
        """
        if end > self.positions:
            grown = self._next(end, self.positions, self.context_tokens)
            more = self._computed(self.positions, grown)
            self._tables = tuple(
                None if old is None or new is None else torch.cat([old, new])
                for old, new in zip(self._tables, more, strict=True)
            )
            self.positions = grown
        return self._tables

    def reserve_(self) -> None:
        """Compute all that the longest text takes, so that the tables never move afterwards."""
        self.until(self.context_tokens + _PAST_CONTEXT)

    def bytes_until(self, end: int, longest: int | None = None) -> int:
        """The most that they take, beyond what they took at first, until there are so many positions.

        Args:
            longest: instead of `context_tokens`.
        """
        longest = self.context_tokens if longest is None else longest
        positions = most = self.positions
        while positions < end:
            positions = self._next(min(end, 2 * positions), positions, longest)
            most = 2 * positions  # the old table and what is added to it, beside the new one
        rotated = sum(kind.frequencies is not None for kind in self._shape.attention_kinds)
        return (most - self._first) * rotated * self._shape.head_dim // 2 * torch.complex64.itemsize

    def _computed(self, first: int, end: int) -> tuple[Tensor | None, ...]:
        """On the processor, so that every device has the same bits, and then on the device."""
        tables = (kind.rotations(end, first) for kind in self._shape.attention_kinds)
        return tuple(None if table is None else table.to(self._device) for table in tables)

    @staticmethod
    def _next(end: int, positions: int, context_tokens: int) -> int:
        """How many positions there are once `end` are wanted and there are fewer."""
        return max(end, min(2 * positions, context_tokens + _PAST_CONTEXT))
