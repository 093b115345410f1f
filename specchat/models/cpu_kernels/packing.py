"""Weights in the blocks that kernels read, and how they get there: unpacked, rounded and laid out in one go, in C."""

from __future__ import annotations

import ctypes
import threading
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specchat.errors import NotNumbers
from specchat.models.cpu_kernels.c_interface import CProduct, maybe_pointer, pointer
from specchat.models.cpu_kernels.kernels import Kernels
from specchat.models.decoder.kv_cache import zeroed_bytes
from specchat.models.decoder.weight_check import not_finite
from specchat.models.weights.gguf_header import FOUR_BIT, Kind
from specchat.models.weights.weight_source import GROUP, StoredRows, WeightSource

_PIECE = 64 << 20
_LINE = 64


class Arena:
    """Gives out memory for tensors, one behind another. It lives as long as what was given out is used."""

    def __init__(self, first: Tensor | None = None) -> None:
        """`first`: uint8, zeros, given out before anything else."""
        self._piece = torch.empty(0, dtype=torch.uint8) if first is None else first
        self._used = 0
        self._lock = threading.Lock()

    def room(self, size: int) -> Tensor:
        """(size,) uint8, zeros, on a cache line's boundary. Safe from several threads."""
        with self._lock:
            if self._used + size > len(self._piece):
                self._piece, self._used = zeroed_bytes(max(_PIECE, size)), 0
            given = self._piece[self._used : self._used + size]
            self._used += -(-size // _LINE) * _LINE
        return given


LANES = 16


@dataclass(frozen=True)
class Product:
    """Weights w = (number − offset) · scale, or number · scale + minimum.

    Args:
        data: uint8, numbers, scales and minima in the order that product.h describes at its `Product`.
    """

    out: int
    inputs: int
    bits: int
    minima: bool
    data: Tensor
    bias: Tensor | None

    @classmethod
    def empty(cls, out: int, inputs: int, bits: int, minima: bool, bias: Tensor | None, arena: Arena) -> Product:
        """A product of zeros, for a packer to fill."""
        data = arena.room(bytes_of(out, inputs, bits, minima))
        return cls(out, inputs, bits, minima, data, None if bias is None else bias.float().contiguous())

    def room_at(self, output: int) -> Tensor:
        """Bytes from the block on that begins with this output."""
        assert output % LANES == 0, "blocks begin at every sixteenth output"
        blocks = -(-self.out // LANES)
        return self.data[output // LANES * (len(self.data) // blocks) :]

    @property
    def nbytes(self) -> int:
        return self.data.nbytes + (0 if self.bias is None else self.bias.nbytes)

    def as_c(self) -> CProduct:
        """This product for C; valid as long as this lives."""
        data = pointer("a weight", self.data, torch.uint8, len(self.data))
        bias = maybe_pointer("a bias", self.bias, torch.float32, self.out)
        return CProduct(self.inputs, self.out, self.bits, int(self.minima), len(self.data), data, bias)


def bytes_of(out: int, inputs: int, bits: int, minima: bool) -> int:
    """Bytes of a product without its bias."""
    step = LANES * GROUP // 8 * bits + (2 if minima else 1) * LANES * 2
    return -(-out // LANES) * -(-inputs // GROUP) * step


_AT_ONCE = 4096
"""Outputs that are packed at once, whole blocks of them. What C cannot read comes as float32, which takes memory."""


ShareOut = Callable[[Callable[[slice], None], Iterable[slice]], Iterable[None]]
"""Calls a function once for each part, like `map`: one after another, or in several threads."""


class Packer:
    """Packs the weights of one source. Several threads may use it at the same time."""

    def __init__(self, kernels: Kernels, source: WeightSource, precision: str) -> None:
        self._kernels = kernels
        self._source = source
        self._precision = precision
        self._arena = Arena()

    def size(self, name: str, layer: int | None = None) -> int:
        weight = self._rows_of(name, layer)
        return -(-bytes_of(weight.rows, weight.length, *self._format(weight)) // _LINE) * _LINE

    def product(
        self, name: str, layer: int | None = None, share_out: ShareOut = map, arena: Arena | None = None
    ) -> Product:
        product = self.empty(name, layer, arena or self._arena)
        self.fill(product, name, layer, share_out)
        return product

    def empty(self, name: str, layer: int | None, arena: Arena) -> Product:
        """Room for a weight, with its bias."""
        weight, source = self._rows_of(name, layer), self._source
        bias = source.dense(name, layer, "bias") if source.has(name, layer, "bias") else None
        return Product.empty(weight.rows, weight.length, *self._format(weight), bias, arena)

    def fill(self, product: Product, name: str, layer: int | None = None, share_out: ShareOut = map) -> None:
        """A weight in 4 bits where the precision is int4 and the source has it so or rounds, else in 8.

        What the file has in 4 bits stays as it is; its scales and minima are rounded to float16 where they take more.
        In 8 bits at most 1/254 of the largest of 32 weights is lost.

        Raises:
            ModelError: the weight holds numbers that are not finite; names the tensor and its file.
        """
        weight = self._rows_of(name, layer)

        def fill(outputs: slice) -> None:
            pack_into(self._kernels, weight.some(outputs), product.bits, product.room_at(outputs.start))

        self._for_all(name, layer, product.out, fill, share_out)

    def check(self, name: str, share_out: ShareOut = map) -> None:
        """Read a weight that is not packed, but used as it lies, row by row.

        Raises:
            ModelError: it holds numbers that are not finite; names the tensor and its file.
        """
        weight = self._rows_of(name, None)

        def look(rows: slice) -> None:
            some = weight.some(rows)  # what C reads of it lives as long as it does
            self._kernels.check("finite_rows", _as_c(some))

        self._for_all(name, None, weight.rows, look, share_out)

    def _for_all(
        self, name: str, layer: int | None, rows: int, part: Callable[[slice], None], share_out: ShareOut
    ) -> None:
        def one(some: slice) -> None:
            try:
                part(some)
            except NotNumbers:
                raise not_finite(self._source, name, layer) from None
            self._source.let_go()

        for _ in share_out(one, [slice(at, at + _AT_ONCE) for at in range(0, rows, _AT_ONCE)]):
            pass  # what failed in another thread is raised here

    def _rows_of(self, name: str, layer: int | None) -> StoredRows | _Unpacked:
        stored = self._source.stored(name, layer)
        readable = stored is not None and self._kernels.packs(stored.kind)
        return stored if stored is not None and readable else _Unpacked(self._source, name, layer)

    def _format(self, weight: StoredRows | _Unpacked) -> tuple[int, bool]:
        """Bits of a number, and whether there are minima."""
        four = weight.kind in FOUR_BIT or (self._source.rounds and weight.length % GROUP == 0)
        bits = 4 if four and self._precision == "int4" else 8
        return bits, bits == 4 and weight.kind != Kind.Q4_0


def pack_into(kernels: Kernels, rows: StoredRows, bits: int, room: Tensor) -> None:
    """Write the blocks of these rows of a weight to a product's room for them."""
    kernels.pack(_as_c(rows), bits, pointer("room", room, torch.uint8, len(room)), len(room))


class RowReader:
    """Unpacks rows of a matrix as they are asked for. Several threads may use it at the same time."""

    def __init__(self, kernels: Kernels, stored: StoredRows) -> None:
        """`stored` is of a kind that the kernels pack, in its own order."""
        assert stored.order is None, "a row is found by its number"
        self._kernels, self._stored = kernels, stored
        self.as_c = _as_c(stored)
        """The whole matrix for C, valid as long as this lives."""

    def rows(self, which: Sequence[int]) -> Tensor:
        """(n, length) float32."""
        order = array("i", which)
        rows = torch.empty(len(order), self.as_c.length)
        if len(order):
            self._kernels.unpack(self.some(order), rows.data_ptr())
        return rows

    def some(self, which: array[int]) -> CStored:
        """These rows, numbers of 32 bits, for C; valid as long as this and they live."""
        whole = self.as_c
        address, count = which.buffer_info()
        return CStored(whole.data, address, whole.row_bytes, count, whole.length, whole.kind, whole.there)


class _Unpacked:
    """A weight that only its source can read; like stored rows, but for the time that `some` takes."""

    kind = Kind.F32

    def __init__(self, source: WeightSource, name: str, layer: int | None) -> None:
        self._source, self._where = source, (name, layer)
        self.rows = source.outputs(name, layer)
        self.length = self._values(slice(0, 1)).shape[1]

    def some(self, rows: slice) -> StoredRows:
        stored = StoredRows.of_tensor(self._values(rows))
        assert stored is not None, "values are float32, in main memory"
        return stored

    def _values(self, rows: slice) -> Tensor:
        return self._source.dense(*self._where, rows=rows)


class CStored(ctypes.Structure):
    """`Stored` of pack.c."""

    _fields_ = [
        *[(name, ctypes.c_void_p) for name in ("data", "order")],
        ("row_bytes", ctypes.c_int64),
        *[(name, ctypes.c_int32) for name in ("rows", "length", "kind", "there")],
    ]


def _as_c(rows: StoredRows) -> CStored:
    """These rows for C; valid as long as `rows` lives."""
    assert rows.data.flags.c_contiguous, "C finds a row by the length of one"
    assert rows.data.dtype == np.uint8, "rows are bytes"
    assert rows.order is None or (rows.order.dtype == np.int32 and rows.order.flags.c_contiguous), "32 bits each"
    order = None if rows.order is None else rows.order.ctypes.data
    there, row_bytes = rows.data.shape
    return CStored(rows.data.ctypes.data, order, row_bytes, rows.rows, rows.length, rows.kind, there)
