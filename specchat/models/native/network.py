"""A decoder's layers in C: the rows of a tree get the bits that plain decoding would give them."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from specchat.core.states import StackedStates
from specchat.errors import ModelError
from specchat.models.base.head_output import HeadOutput
from specchat.models.base.kv_cache import KVCache, MoveRows
from specchat.models.base.network import Pass
from specchat.models.base.prepared_source import prepared
from specchat.models.base.shape import Shape
from specchat.models.base.sub_layers import SubLayers
from specchat.models.files.weight_source import WeightSource, head_rows
from specchat.models.native.adapters import AdapterTables
from specchat.models.native.kernels import BEST, HeadRoom, kernels_for
from specchat.models.native.packing import Packer, RowReader
from specchat.models.native.product import CProduct, Product
from specchat.models.native.tensor_pointers import maybe_pointer, pointer

KEYS = 32
"""Keys of so many rows lie side by side in the cache; attention.h has the same number."""


class _CLayer(ctypes.Structure):
    _fields_ = [
        ("input_norm", ctypes.c_void_p),
        ("mlp_norm", ctypes.c_void_p),
        ("q_norm", ctypes.c_void_p),
        ("k_norm", ctypes.c_void_p),
        ("post_attention_norm", ctypes.c_void_p),
        ("post_mlp_norm", ctypes.c_void_p),
        ("kind", ctypes.c_int32),
        ("qkv", CProduct * 3),
        ("o", CProduct),
        ("gate_up", CProduct * 2),
        ("down", CProduct),
    ]


class CDecoder(ctypes.Structure):
    _fields_ = [
        *[(n, ctypes.c_int32) for n in ("layers", "hidden", "heads", "kv_heads", "head_dim", "inter", "vocab_size")],
        *[(n, ctypes.c_int32) for n in ("kinds", "gelu")],
        ("epsilon", ctypes.c_float),
        ("layer", ctypes.POINTER(_CLayer)),
        ("norm", ctypes.c_void_p),
        ("head", CProduct),
    ]


class _CAttentionKind(ctypes.Structure):
    _fields_ = [
        *[(name, ctypes.c_int32) for name in ("common", "positions")],
        *[(name, ctypes.c_void_p) for name in ("rotations", "mask")],
    ]


_KINDS = 4


class _CRows(ctypes.Structure):
    _fields_ = [
        *[(name, ctypes.c_int32) for name in ("rows", "end", "capacity")],
        *[(name, ctypes.c_void_p) for name in ("hidden", "positions", "places", "keys", "values")],
        ("kind", _CAttentionKind * _KINDS),
        *[(name, ctypes.c_void_p) for name in ("place_of", "mlp")],
        *[(name, ctypes.c_int32) for name in ("kept", "adapters")],
        *[(name, ctypes.c_void_p) for name in ("low_rank", "adapter_of")],
        ("tapped", ctypes.c_int32),
        *[(name, ctypes.c_void_p) for name in ("tap_of", "taps")],
    ]


@dataclass(frozen=True)
class NativeLayer:
    """One layer's weights."""

    input_norm: Tensor
    mlp_norm: Tensor
    q_norm: Tensor | None
    k_norm: Tensor | None
    post_attention_norm: Tensor | None
    post_mlp_norm: Tensor | None
    kind: int
    products: tuple[Product, ...]  # q, k, v, o, gate, up, down

    def as_c(self, index: int, shape: Shape) -> _CLayer:
        q, k, v, o, gate, up, down = (product.as_c() for product in self.products)
        norms = [
            maybe_pointer(f"layer {index}, {name}", getattr(self, name), torch.float32, size)
            for name, size in (
                *((name, shape.hidden) for name in ("input_norm", "mlp_norm")),
                *((name, shape.head_dim) for name in ("q_norm", "k_norm")),
                *((name, shape.hidden) for name in ("post_attention_norm", "post_mlp_norm")),
            )
        ]
        return _CLayer(*norms, self.kind, (CProduct * 3)(q, k, v), o, (CProduct * 2)(gate, up), down)


class NativeNetwork:
    """Weights of 4 bits where the file has them (or 8 throughout), activations of 8 bits with a scale per 32 of a row.

    Keys and values are kept in bfloat16. Everything that is not a whole number is added in an order of the row's own,
    so a row's result does not depend on the others.
    """

    def __init__(self, shape: Shape, source: WeightSource, precision: str, processor: str = "native") -> None:
        self.shape = shape
        self.precision = precision
        self.device = torch.device("cpu")
        self.kernels = "native"
        self.keys_together = KEYS
        self.threads = torch.get_num_threads()
        self._kernels = kernels_for(processor)
        self.move_rows: MoveRows | None = self._kernels.move_rows
        self._source: WeightSource = prepared(source, shape)
        packer = Packer(self._kernels, self._source, precision)
        with ThreadPoolExecutor(self.threads) as pool:
            self._layers = list(pool.map(partial(self._layer, packer), range(shape.layers)))
            self._head = packer.product("embed" if shape.tied else "head", share_out=pool.map)
        self._norm = self._source.dense("norm")
        stored = self._source.stored("embed") if shape.embedding_scale == 1.0 else None
        plain = stored is not None and self._kernels.packs(stored.kind) and stored.length == shape.hidden
        self._embedding = RowReader(self._kernels, stored) if stored is not None and plain else None
        self.like = torch.empty(shape.kv_heads, shape.head_dim, dtype=torch.bfloat16)
        products = [self._head, *(product for layer in self._layers for product in layer.products)]
        self.nbytes = sum(product.nbytes for product in products)
        self.weights = sum(product.out * product.inputs for product in products)
        told = [layer.as_c(index, shape) for index, layer in enumerate(self._layers)]
        self._c_layers = (_CLayer * shape.layers)(*told)
        self._adapters = AdapterTables(shape)
        self._c = CDecoder(
            *(shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.head_dim),
            *(shape.inner, shape.vocab_size, len(shape.attention_kinds), shape.gate == "gelu", shape.epsilon),
            *(self._c_layers, pointer("the last norm", self._norm, torch.float32, shape.hidden), self._head.as_c()),
        )
        self._kernels.check(self._c)

    def embed(self, tokens: Sequence[int]) -> Tensor:
        return self._source.embed(list(tokens)) if self._embedding is None else self._embedding.rows(tokens)

    def head_rows(self, tokens: Sequence[int]) -> Tensor:
        return head_rows(self._source, self.shape.tied, tokens)

    def head(self, hidden: Tensor, totals: bool = False) -> HeadOutput:
        hidden = _floats(hidden)
        rows, vocab_size = hidden.shape[0], self.shape.vocab_size
        said = HeadRoom(rows, vocab_size, totals=totals)
        if rows:
            states = pointer("states", hidden, torch.float32, rows, self.shape.hidden)
            self._kernels.head(self.threads, self._c, states, rows, said)
        return said.output

    def pass_bytes(self, rows: int, seen: int, logits: bool) -> int:
        shape = self.shape
        states, masks = 4 * rows * shape.hidden, len(shape.attention_kinds) * rows * seen
        said = 4 * rows * (shape.vocab_size + BEST) if logits else 0
        return states + masks + said + self._kernels.working_bytes(self.threads, self._c, rows, seen)

    def run(self, running: Pass) -> Tensor:
        rows, watch = _Rows(running, self.shape, self.like, self._adapters), running.watch
        for layers in running.segments(self.shape.layers):
            running.counters.node_layers += running.parts.computed(layers) * rows.hidden.shape[0]
            taps = None if watch is None else rows.taps(watch.tapped(layers))
            self._kernels.layers(self.threads, self._c, rows.as_c(taps), layers)
            if watch is None:
                continue
            if taps is not None:
                watch.keep(taps.states)
            stay = watch.ask_hooks(layers.stop - 1, rows.hidden)
            if stay is not None:
                rows.drop(stay)
        return rows.hidden

    def time_phases(self, timed: bool) -> None:
        """Time the phases of the passes that follow, or no longer; forget what was timed."""
        self._kernels.time_phases(self.threads, timed)

    def phases(self) -> dict[str, float]:
        """Seconds by phase since then."""
        return self._kernels.spent(self.threads)

    def floor(self, data: Tensor) -> tuple[float, float]:
        """Bytes of memory and operations on 8-bit numbers a second; `data` as `Kernels.floor` takes it."""
        return self._kernels.floor(self.threads, data)

    def _layer(self, packer: Packer, index: int) -> NativeLayer:
        source = self._source

        def norm(name: str) -> Tensor | None:
            return source.dense(name, index) if source.has(name, index) else None

        products = tuple(packer.product(name, index) for name in ("q", "k", "v", "o", "gate", "up", "down"))
        return NativeLayer(
            input_norm=source.dense("input_norm", index),
            mlp_norm=source.dense("mlp_norm", index),
            q_norm=norm("q_norm"),
            k_norm=norm("k_norm"),
            post_attention_norm=norm("post_attention_norm"),
            post_mlp_norm=norm("post_mlp_norm"),
            kind=self.shape.kind_of[index],
            products=products,
        )


@dataclass(frozen=True)
class _Taps:
    """Layers whose states C copies; `places` says of each layer where among them its states go, or −1."""

    states: StackedStates
    places: array[int]


class _Rows:
    """The rows of one pass and where they lie."""

    def __init__(self, running: Pass, shape: Shape, like: Tensor, adapters: AdapterTables) -> None:
        plan = running.plan
        self.hidden = _floats(running.hidden)
        self._shape = shape
        self._tables = running.tables
        self._seen = running.masks(shape.attention_kinds)
        # Where a window hides what is old, no row need be seen by all.
        self._common = [plan.common if seen is plan.mask else 0 for seen in self._seen]
        self._end = plan.mask.shape[1]
        self._positions, self._places = array("i", plan.positions), array("i", plan.written)
        self._keys, self._values = running.cache.room_for(self._end, like)
        self._place_of, self._mlp = _left_out(running.parts, running.cache)
        self._adapters, self._adapter_of = adapters.of(running.riders, self.hidden.shape[0])

    def drop(self, stay: list[int]) -> None:
        """Go on with these rows alone; `stay` are places among the rows so far."""
        self.hidden = self.hidden[stay]
        self._positions, self._places = (array("i", map(a.__getitem__, stay)) for a in (self._positions, self._places))
        self._seen = [seen[stay] for seen in self._seen]
        self._adapter_of = None if self._adapter_of is None else self._adapter_of[stay]

    def taps(self, layers: tuple[int, ...]) -> _Taps | None:
        """Room for the states of the rows after these layers; None where there are none."""
        if not layers:
            return None
        places = array("i", [-1]) * self._shape.layers
        for place, layer in enumerate(layers):
            places[layer] = place
        return _Taps(StackedStates(layers, torch.empty(len(layers), *self.hidden.shape)), places)

    def as_c(self, taps: _Taps | None = None) -> _CRows:
        """The same for C; valid as long as this and the taps live and nothing is dropped."""
        shape, rows, (kept, _, capacity, _) = self._shape, self.hidden.shape[0], self._keys.shape
        if rows != len(self._places):
            raise ModelError(f"the native kernels refuse states: {rows} rows, not {len(self._places)}")
        cache = (torch.bfloat16, kept, shape.kv_heads, capacity, shape.head_dim)
        kinds = [
            _CAttentionKind(
                *(common, 0 if table is None else table.shape[0]),
                maybe_pointer("rotations", table, torch.complex64, *_sizes(table, shape)),
                pointer("a mask", seen, torch.bool, rows, self._end),
            )
            for common, table, seen in zip(self._common, self._tables, self._seen, strict=True)
        ]
        return _CRows(
            *(rows, self._end, capacity),
            pointer("states", self.hidden, torch.float32, rows, shape.hidden),
            *(self._positions.buffer_info()[0], self._places.buffer_info()[0]),
            pointer("keys", self._keys, *cache),
            pointer("values", self._values, *cache),
            (_CAttentionKind * _KINDS)(*kinds),
            maybe_pointer("places in the cache", self._place_of, torch.int32, shape.layers),
            maybe_pointer("which MLPs are computed", self._mlp, torch.bool, shape.layers),
            *(kept, 0 if self._adapters is None else self._adapters.count),
            None if self._adapters is None else ctypes.addressof(self._adapters.table),
            maybe_pointer("which adapters act", self._adapter_of, torch.int32, rows),
            0 if taps is None else len(taps.states),
            *((None, None) if taps is None else (taps.places.buffer_info()[0], taps.states.stacked.data_ptr())),
        )


def _left_out(parts: SubLayers, cache: KVCache) -> tuple[Tensor | None, Tensor | None]:
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


def _floats(states: Tensor) -> Tensor:
    """States as C reads them, whatever format and order they come in."""
    if states.dtype == torch.float32 and states.device.type == "cpu" and states.is_contiguous():
        return states  # as they nearly always are; asking torch for the same takes as long as everything else here
    return states.to("cpu", torch.float32).contiguous()
