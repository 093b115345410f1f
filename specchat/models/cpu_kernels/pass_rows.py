"""The rows of one pass as C takes them: where they lie, what they see, which states are copied."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from specchat.core.record import record
from specchat.core.states import StackedStates
from specchat.errors import ModelError
from specchat.models.cpu_kernels.adapters import AdapterTables
from specchat.models.cpu_kernels.c_structures import KINDS, CAttentionKind, CRows
from specchat.models.cpu_kernels.tensor_pointers import maybe_pointer, pointer
from specchat.models.decoder.kv_cache import KVCache
from specchat.models.decoder.network import Pass, SubLayers
from specchat.models.decoder.shape import Shape

LeftOut = tuple[Tensor | None, Tensor | None]
"""As `left_out` returns it."""


@record
class Taps:
    """Layers whose states C copies.

    Args:
        places: says of each layer where among them its states go, or −1.
        addresses: of places and states, as C takes them; valid as long as this lives.
    """

    states: StackedStates
    places: array[int]
    addresses: tuple[int, int]

    @classmethod
    def of(cls, layers: tuple[int, ...], among: int, rows: int, width: int) -> Taps | None:
        """Room for (rows, width) states after these layers; None where there are none."""
        if not layers:
            return None
        places = _places(layers, among)
        states = StackedStates(layers, rows, width)
        return cls(states, places, (places.buffer_info()[0], states.address))


@lru_cache(maxsize=64)
def _places(layers: tuple[int, ...], among: int) -> array[int]:
    return array("i", [layers.index(layer) if layer in layers else -1 for layer in range(among)])


def about_cache(
    shape: Shape, keys: Tensor, values: Tensor, tables: Sequence[Tensor | None], left_out: LeftOut
) -> CRows:
    """What all passes over a cache have in common, for C; valid as long as these tensors live."""
    kept, _, capacity, _ = keys.shape
    cache = (torch.bfloat16, kept, shape.kv_heads, capacity, shape.head_dim)
    place_of, mlp = left_out
    kinds = [
        CAttentionKind(
            *(0, 0 if table is None else table.shape[0]),
            maybe_pointer("rotations", table, torch.complex64, *_sizes(table, shape)),
        )
        for table in tables
    ]
    return CRows(
        capacity=capacity,
        keys=pointer("keys", keys, *cache),
        values=pointer("values", values, *cache),
        kind=(CAttentionKind * KINDS)(*kinds),
        place_of=maybe_pointer("places in the cache", place_of, torch.int32, shape.layers),
        mlp=maybe_pointer("which MLPs are computed", mlp, torch.bool, shape.layers),
        kept=kept,
    )


class PassRows:
    """The rows of one pass and where they lie."""

    def __init__(self, running: Pass, shape: Shape, like: Tensor, adapters: AdapterTables) -> None:
        plan = running.plan
        self.hidden = as_floats(running.hidden)
        self._shape = shape
        self._tables = running.tables
        self._seen = running.masks(shape.attention_kinds)
        # Where a window hides what is old, no row need be seen by all.
        self._common = [plan.common if seen is plan.mask else 0 for seen in self._seen]
        self._end = plan.mask.shape[1]
        self._positions, self._places = array("i", plan.positions), array("i", plan.written)
        self._keys, self._values = running.cache.room_for(self._end, like)
        self._left_out = left_out(running.parts, running.cache)
        self._adapters, self._adapter_of = adapters.of(running.extra_rows, self.hidden.shape[0])

    def drop(self, stay: list[int]) -> None:
        """Go on with these rows alone; `stay` are places among the rows so far."""
        self.hidden = self.hidden[stay]
        self._positions, self._places = (array("i", map(a.__getitem__, stay)) for a in (self._positions, self._places))
        self._seen = [seen[stay] for seen in self._seen]
        self._adapter_of = None if self._adapter_of is None else self._adapter_of[stay]

    def taps(self, layers: tuple[int, ...]) -> Taps | None:
        """Room for the states of the rows after these layers; None where there are none."""
        return Taps.of(layers, self._shape.layers, self.hidden.shape[0], self._shape.hidden)

    def as_c(self, taps: Taps | None = None) -> CRows:
        """The same for C; valid as long as this and the taps live and nothing is dropped."""
        rows = self.hidden.shape[0]
        if rows != len(self._places):
            raise ModelError(f"the native kernels refuse states: {rows} rows, not {len(self._places)}")
        about = about_cache(self._shape, self._keys, self._values, self._tables, self._left_out)
        about.rows, about.end = rows, self._end
        about.hidden = pointer("states", self.hidden, torch.float32, rows, self._shape.hidden)
        about.positions, about.places = self._positions.buffer_info()[0], self._places.buffer_info()[0]
        for kind, common, seen in zip(about.kind, self._common, self._seen, strict=False):
            kind.common, kind.mask = common, pointer("a mask", seen, torch.bool, rows, self._end)
        if self._adapters is not None:
            about.adapters, about.low_rank = self._adapters.count, ctypes.addressof(self._adapters.table)
        about.adapter_of = maybe_pointer("which adapters act", self._adapter_of, torch.int32, rows)
        if taps is not None:
            about.tapped, (about.tap_of, about.taps) = len(taps.states), taps.addresses
        return about


def left_out(parts: SubLayers, cache: KVCache) -> LeftOut:
    """(layers,) int32 where each layer's rows lie, −1 without attention; (layers,) bool which MLPs are computed.

    None where nothing is left out.
    """
    if parts.complete:
        return None, None
    every = range(parts.layers)
    places = [cache.place_of.get(layer, -1) for layer in every]
    return torch.tensor(places, dtype=torch.int32), torch.tensor([layer in parts.mlp for layer in every])


def _sizes(table: Tensor | None, shape: Shape) -> tuple[int, ...]:
    return () if table is None else (table.shape[0], 1, shape.head_dim // 2)


def as_floats(states: Tensor) -> Tensor:
    """States as C reads them, whatever format and order they come in."""
    if states.dtype == torch.float32 and states.device.type == "cpu" and states.is_contiguous():
        return states  # as they nearly always are; asking torch for the same takes as long as everything else here
    return states.to("cpu", torch.float32).contiguous()
