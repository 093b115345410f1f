"""A pass as C takes it: its rows, what they see, the adapters that act on them; and passes that are one call."""

from __future__ import annotations

import ctypes
import weakref
from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from specchat.core.record import record
from specchat.core.request import Adapter, ExtraRow
from specchat.core.states import StackedStates
from specchat.errors import ModelError
from specchat.models.cpu_kernels.c_interface import KINDS, CAttentionKind, CRows, CWholePass, maybe_pointer, pointer
from specchat.models.cpu_kernels.kernels import Kernels
from specchat.models.cpu_kernels.logits_buffer import LogitsBuffer
from specchat.models.cpu_kernels.packing import RowReader
from specchat.models.decoder.adapters import PRODUCTS, Factors, acting, adapters_of, checked, paired, sizes_of
from specchat.models.decoder.kv_cache import KVCache
from specchat.models.decoder.network import Pass, SubLayers
from specchat.models.decoder.shape import Shape


class _CLowRank(ctypes.Structure):
    """`LowRank` of adapter.h."""

    _fields_ = [
        *[(name, ctypes.c_int32) for name in ("rank", "inputs", "outputs")],
        *[(name, ctypes.c_void_p) for name in ("down", "up")],
    ]


class AdapterTables:
    """Turns adapters into what C reads, once for each adapter. They live as long as the adapters."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._sizes = sizes_of(shape)
        self._made: WeakKeyDictionary[Adapter, tuple[Factors, bytes]] = WeakKeyDictionary()

    def of(self, extra_rows: Sequence[ExtraRow], rows: int) -> tuple[Any, Tensor | None]:
        """The adapters of a pass with so many rows, the extra rows last; and which of them acts on which row.

        Returns:
            (adapters · layers · products) for C, which lives as long as the adapters, and (rows,) int32, −1 for rows
            without one; None and None where no extra row names one.

        Raises:
            ModelError: an adapter that does not fit the network.
        """
        adapters = adapters_of(extra_rows)
        if not adapters:
            return None, None
        tables = b"".join(self._table(adapter) for adapter in adapters)
        which = torch.tensor([-1] * (rows - len(extra_rows)) + acting(extra_rows, adapters), dtype=torch.int32)
        return (_CLowRank * (len(tables) // ctypes.sizeof(_CLowRank))).from_buffer_copy(tables), which

    def _table(self, adapter: Adapter) -> bytes:
        if adapter not in self._made:
            checked(adapter, self._shape.layers, self._sizes)
            own = {
                where: (down.float().contiguous(), up.float().contiguous())
                for where, (down, up) in paired(adapter.factors, self._shape.head_dim).items()
            }
            entries = [self._entry(own, layer, name) for layer in range(self._shape.layers) for name in PRODUCTS]
            self._made[adapter] = own, bytes((_CLowRank * len(entries))(*entries))
        return self._made[adapter][1]

    def _entry(self, factors: Factors, layer: int, name: str) -> _CLowRank:
        outputs, inputs = self._sizes[name]
        if (layer, name) not in factors:
            return _CLowRank(0, inputs, outputs, None, None)
        down, up = factors[layer, name]
        return _CLowRank(len(down), inputs, outputs, down.data_ptr(), up.data_ptr())


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
    """The part of `Rows` that all passes over a cache share; valid as long as these tensors live."""
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
        self._adapters = adapters_of(running.extra_rows)  # they live as long as C may read their table
        self._table, self._adapter_of = adapters.of(running.extra_rows, plan.rows)
        self._whole = self._positions, self._places, self._seen, self._adapter_of
        if running.entries:
            self.follow(self.hidden, running.first_rows)

    def follow(self, hidden: Tensor, rows: Sequence[int]) -> None:
        """Go on with these rows of the pass, whose states are (n, d) `hidden`."""
        positions, places, seen, adapter_of = self._whole
        self.hidden = as_floats(hidden)
        self._positions, self._places = (array("i", map(a.__getitem__, rows)) for a in (positions, places))
        self._seen = [mask[rows] for mask in seen]
        self._adapter_of = None if adapter_of is None else adapter_of[rows]

    def taps(self, layers: tuple[int, ...]) -> Taps | None:
        """Room for the states of the rows after these layers; None where there are none."""
        return Taps.of(layers, self._shape.layers, self.hidden.shape[0], self._shape.hidden)

    def as_c(self, taps: Taps | None = None) -> CRows:
        """These rows for C; valid as long as this and the taps live and nothing is dropped."""
        rows = self.hidden.shape[0]
        if rows != len(self._places):
            raise ModelError(f"the native kernels refuse states: {rows} rows, not {len(self._places)}")
        about = about_cache(self._shape, self._keys, self._values, self._tables, self._left_out)
        about.rows, about.end = rows, self._end
        about.hidden = pointer("states", self.hidden, torch.float32, rows, self._shape.hidden)
        about.positions, about.places = self._positions.buffer_info()[0], self._places.buffer_info()[0]
        for kind, common, seen in zip(about.kind, self._common, self._seen, strict=False):
            kind.common, kind.mask = common, pointer("a mask", seen, torch.bool, rows, self._end)
        if self._adapters:
            about.adapters, about.low_rank = len(self._adapters), ctypes.addressof(self._table)
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


def read_together(
    passes: Sequence[tuple[WholePasses, Pass]],
    kernels: Kernels,
    threads: int,
    decoder: object,
    said: LogitsBuffer,
    ready: Callable[[int], None] | None,
) -> None:
    """Do the passes of several texts in one call. `said` has room for the rows of all that have logits.

    `ready` is called before each layer.
    """
    prepared = [whole.prepare(running) for whole, running in passes]
    first = prepared[0][1]
    first.states = said.states_address
    first.tokens, first.named, first.apart, first.highest, first.logits, first.logsumexp = said.asked
    caches, wholes = [about for about, *_ in prepared], [whole for _, whole, *_ in prepared]
    kernels.read_together(threads, decoder, caches, wholes, ready)
    for (_, running), (_, _, taps, _) in zip(passes, prepared, strict=True):
        if running.watch is not None and taps is not None:
            running.watch.keep(taps.states)


class WholePasses:
    """Embeddings, layers and head over one cache. Tensors that stay are checked when they change, not at every pass."""

    def __init__(self, shape: Shape, like: Tensor, embedding: RowReader) -> None:
        self._shape, self._like = shape, like
        # Written anew in every pass.
        self._whole = CWholePass(embedding=ctypes.addressof(embedding.as_c), scale=shape.embedding_scale)
        self._narrowest = min((kind.window for kind in shape.attention_kinds if kind.window), default=None)
        self._about = CRows()
        self._of: tuple[weakref.ref[Tensor] | None, object, object] = None, None, None  # what `_about` tells of
        self._left_out: LeftOut = (None, None)  # what it points to

    def takes(self, running: Pass) -> bool:
        """Whether a pass is one call: no hook runs between layers, and all rows are tokens that see whole paths."""
        plan, watch = running.plan, running.watch
        if running.extra_rows or not plan.nodes or (watch is not None and watch.hooked):
            return False
        return self._narrowest is None or plan.start + len(plan.tokens) <= self._narrowest

    def joins(self, running: Pass) -> bool:
        """Whether a pass can be one call with those of other texts: it reads a whole tree, in all layers."""
        return running.plan.start == running.plan.common and running.parts.complete and self.takes(running)

    def read(self, running: Pass, kernels: Kernels, threads: int, decoder: object, said: LogitsBuffer) -> None:
        """Do a pass that is one call."""
        about, whole, taps, _numbers = self.prepare(running)
        whole.states = said.states_address
        whole.tokens, whole.named, whole.apart, whole.highest, whole.logits, whole.logsumexp = said.asked
        kernels.read(threads, decoder, about, whole)
        if running.watch is not None and taps is not None:
            running.watch.keep(taps.states)

    def prepare(self, running: Pass) -> tuple[CRows, CWholePass, Taps | None, array[int]]:
        """A pass for C but what is asked of the head, the states that it copies, and numbers that it reads.

        All but the taps are written anew by the next pass over this cache.
        """
        plan, watch, shape = running.plan, running.watch, self._shape
        rows = len(plan.tokens)
        about = self._about_cache(running, plan.start + rows)
        numbers = array("i", [*plan.tokens, *plan.above])
        taps = None if watch is None else Taps.of(watch.tapped(range(shape.layers)), shape.layers, rows, shape.hidden)
        whole = self._whole
        whole.rows, whole.missing = rows, plan.missing
        whole.start, whole.common, whole.first = plan.start, plan.common, plan.first
        whole.numbers, whole.count = numbers.buffer_info()
        whole.tapped = 0
        if taps is not None:
            whole.tapped, (whole.tap_of, whole.taps) = len(taps.states.layers), taps.addresses
        return about, whole, taps, numbers

    def _about_cache(self, running: Pass, end: int) -> CRows:
        """The cache for C, with room for so many rows."""
        keys, values = running.cache.room_for(end, self._like)
        known, tables, parts = self._of
        if known is None or known() is not keys or tables is not running.tables or parts is not running.parts:
            self._left_out = left_out(running.parts, running.cache)
            self._about = about_cache(self._shape, keys, values, running.tables, self._left_out)
            # By a weak reference: a cache that grows lets go of the memory that it had.
            self._of = weakref.ref(keys), running.tables, running.parts
        return self._about
