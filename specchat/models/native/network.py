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

from specchat.models.base.head_output import Said
from specchat.models.base.network import Pass
from specchat.models.base.shape import Shape
from specchat.models.files.weight_source import PairedSource, WeightSource
from specchat.models.native.kernels import BEST, kernels_for
from specchat.models.native.packing import Packer
from specchat.models.native.product import CProduct, Product, address

KEYS = 32
"""Keys of so many rows lie side by side in the cache; attention.h has the same number."""


class _CLayer(ctypes.Structure):
    _fields_ = [
        ("input_norm", ctypes.c_void_p),
        ("mlp_norm", ctypes.c_void_p),
        ("q_norm", ctypes.c_void_p),
        ("k_norm", ctypes.c_void_p),
        ("rotates", ctypes.c_int32),
        ("qkv", CProduct * 3),
        ("o", CProduct),
        ("gate_up", CProduct * 2),
        ("down", CProduct),
    ]


class _CDecoder(ctypes.Structure):
    _fields_ = [
        *[(n, ctypes.c_int32) for n in ("layers", "hidden", "heads", "kv_heads", "head_dim", "inter", "vocab_size")],
        ("epsilon", ctypes.c_float),
        ("layer", ctypes.POINTER(_CLayer)),
        ("norm", ctypes.c_void_p),
        ("head", CProduct),
    ]


class _CRows(ctypes.Structure):
    _fields_ = [
        *[(name, ctypes.c_int32) for name in ("rows", "common", "end", "capacity")],
        *[(name, ctypes.c_void_p) for name in ("hidden", "turns", "positions", "places", "mask", "keys", "values")],
    ]


@dataclass(frozen=True)
class NativeLayer:
    """One layer's weights."""

    input_norm: Tensor
    mlp_norm: Tensor
    q_norm: Tensor | None
    k_norm: Tensor | None
    rotates: bool
    products: tuple[Product, ...]  # q, k, v, o, gate, up, down

    def as_c(self) -> _CLayer:
        q, k, v, o, gate, up, down = (product.as_c() for product in self.products)
        norms = [address(norm) for norm in (self.input_norm, self.mlp_norm, self.q_norm, self.k_norm)]
        return _CLayer(*norms, int(self.rotates), (CProduct * 3)(q, k, v), o, (CProduct * 2)(gate, up), down)


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
        self._source: WeightSource = PairedSource(source, shape.head_dim)
        packer = Packer(self._kernels, self._source, precision)
        with ThreadPoolExecutor(self.threads) as pool:
            self._layers = list(pool.map(partial(self._layer, packer), range(shape.layers)))
            self._head = packer.product("embed" if shape.tied else "head", share_out=pool.map)
        self._norm = self._source.dense("norm")
        self._like = torch.empty(shape.kv_heads, shape.head_dim, dtype=torch.bfloat16)
        products = [self._head, *(product for layer in self._layers for product in layer.products)]
        self.nbytes = sum(product.nbytes for product in products)
        self.weights = sum(product.out * product.inputs for product in products)
        self._c_layers = (_CLayer * shape.layers)(*(layer.as_c() for layer in self._layers))
        self._c = _CDecoder(
            *(shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.head_dim),
            *(self._layers[0].products[4].out, shape.vocab_size, shape.epsilon),
            *(self._c_layers, address(self._norm), self._head.as_c()),
        )

    def embed(self, tokens: Sequence[int]) -> Tensor:
        return self._source.embed(list(tokens))

    def head(self, hidden: Tensor, totals: bool = False) -> Said:
        hidden = hidden.contiguous()
        rows, vocab_size = len(hidden), self.shape.vocab_size
        logits, best = torch.empty(rows, vocab_size), torch.empty(rows, BEST, dtype=torch.int32)
        summed = torch.empty(rows) if totals else None
        if rows:
            addresses = (hidden.data_ptr(), rows, logits.data_ptr(), best.data_ptr(), address(summed))
            self._kernels.head(self.threads, self._c, *addresses)
        return Said(logits, best if vocab_size >= BEST else best[:, :vocab_size], summed)

    def run(self, running: Pass) -> Tensor:
        rows = _Rows(running, self._like)
        for layers in running.segments(self.shape.layers):
            running.counters.node_layers += len(layers) * len(rows.hidden)
            self._kernels.layers(self.threads, self._c, rows.as_c(), layers)
            if running.watch is not None and running.watch.wants(layers.stop - 1):
                # What is looked at must stay as it is: the layers that follow write over the rows.
                stay = running.watch.after_layer(layers.stop - 1, rows.hidden.clone())
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
        q_norm, k_norm = (
            source.dense(name, index) if source.has(name, index) else None for name in ("q_norm", "k_norm")
        )
        norms = source.dense("input_norm", index), source.dense("mlp_norm", index), q_norm, k_norm
        products = tuple(packer.product(name, index) for name in ("q", "k", "v", "o", "gate", "up", "down"))
        return NativeLayer(*norms, self.shape.rotates[index], products)


class _Rows:
    """The rows of one pass and where they lie."""

    def __init__(self, running: Pass, like: Tensor) -> None:
        plan = running.plan
        self.hidden = running.hidden.contiguous()
        self._seen = plan.mask
        self._end = self._seen.shape[1]
        self._common = plan.common
        self._turns = running.table
        self._positions, self._places = array("i", plan.positions), array("i", range(plan.start, self._end))
        self._keys, self._values = running.cache.room_for(self._end, like)

    def drop(self, stay: list[int]) -> None:
        """Go on with these rows alone; `stay` are places among the rows so far."""
        self.hidden, self._seen = self.hidden[stay], self._seen[stay]
        self._positions, self._places = (array("i", map(a.__getitem__, stay)) for a in (self._positions, self._places))

    def as_c(self) -> _CRows:
        """The same for C; valid as long as this lives and nothing is dropped."""
        sizes = (len(self.hidden), self._common, self._end, self._keys.shape[2])
        texts = (self._positions.buffer_info()[0], self._places.buffer_info()[0])
        parts = (self._seen.data_ptr(), self._keys.data_ptr(), self._values.data_ptr())
        return _CRows(*sizes, self.hidden.data_ptr(), self._turns.data_ptr(), *texts, *parts)
