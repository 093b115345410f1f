"""Low-rank adapters as the native kernels read them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from specchat.core.request import Adapter, ExtraRow
from specchat.models.decoder.adapters import PRODUCTS, Factors, acting, adapters_of, checked, paired, sizes_of
from specchat.models.decoder.shape import Shape


class _CLowRank(ctypes.Structure):
    """`LowRank` of adapter.h."""

    _fields_ = [
        *[(name, ctypes.c_int32) for name in ("rank", "inputs", "outputs")],
        *[(name, ctypes.c_void_p) for name in ("down", "up")],
    ]


@dataclass(frozen=True)
class PassAdapters:
    """The adapters of one pass; `table` is (adapters, layers, products) for C, and valid as long as they live."""

    adapters: tuple[Adapter, ...]
    table: Any

    @property
    def count(self) -> int:
        return len(self.adapters)


class AdapterTables:
    """Turns adapters into what C reads, once for each adapter. They live as long as the adapters."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._sizes = sizes_of(shape)
        self._made: WeakKeyDictionary[Adapter, tuple[Factors, bytes]] = WeakKeyDictionary()

    def of(self, extra_rows: Sequence[ExtraRow], rows: int) -> tuple[PassAdapters | None, Tensor | None]:
        """The adapters of a pass with so many rows, the extra rows last; and which of them acts on which row.

        Returns:
            The adapters, and (rows,) int32, −1 for rows without one; None and None where no extra row names one.

        Raises:
            ModelError: an adapter that does not fit the network.
        """
        adapters = adapters_of(extra_rows)
        if not adapters:
            return None, None
        tables = b"".join(self._table(adapter) for adapter in adapters)
        which = torch.tensor([-1] * (rows - len(extra_rows)) + acting(extra_rows, adapters), dtype=torch.int32)
        table = (_CLowRank * (len(tables) // ctypes.sizeof(_CLowRank))).from_buffer_copy(tables)
        return PassAdapters(adapters, table), which

    def _table(self, adapter: Adapter) -> bytes:
        if adapter not in self._made:
            checked(adapter, self._shape.layers, self._sizes)
            own = {
                where: (down.float().contiguous(), up.float().contiguous())
                for where, (down, up) in paired(adapter, self._shape.head_dim).items()
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
