"""A weight as the native kernels read it: whole numbers in blocks of outputs, a scale per 32 inputs of an output."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specchat.models.gguf_reader import GROUP, FourBit
from specchat.models.native.arena import Arena

LANES = 16
_AT_ONCE = 4096

Rows = Callable[[slice], Tensor]

_MIDDLE = {4: 8, 8: 128}
"""The number that stands for zero where a weight has scales only."""


class CProduct(ctypes.Structure):
    """`Product` of product.h."""

    _fields_ = [
        ("out", ctypes.c_int32),
        ("bits", ctypes.c_int32),
        ("minima", ctypes.c_int32),
        ("data", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
    ]


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
    def of_four_bits(cls, weight: FourBit, bias: Tensor | None, arena: Arena) -> Product:
        """The file's own numbers; scales and minima rounded to float16 where they are not float16 already."""
        centred = torch.equal(weight.minimum, -_MIDDLE[4] * weight.scale)
        product = cls._empty(4, weight.numbers.shape, not centred, bias, arena)
        product._fill(0, weight.numbers, weight.scale, None if centred else weight.minimum)
        return product

    @classmethod
    def of_dense(cls, out: int, rows: Rows, bias: Tensor | None, arena: Arena) -> Product:
        """Rounded to 8 bits, a scale per 32 inputs: at most 1/254 of the largest of them is lost.

        Args:
            out: how many outputs there are.
            rows: gives (n, in) float32 weights of some outputs; asked for a few at a time, which saves memory.
        """
        first = rows(slice(0, min(out, _AT_ONCE)))
        product = cls._empty(8, (out, first.shape[1]), False, bias, arena)
        for begin in range(0, out, _AT_ONCE):
            weight = first if begin == 0 else rows(slice(begin, min(out, begin + _AT_ONCE)))
            grouped = F.pad(weight, (0, -weight.shape[1] % GROUP)).view(len(weight), -1, GROUP)
            scale = (grouped.abs().amax(dim=-1) / 127).half().float()
            numbers = (grouped / scale.clamp(min=1e-12)[..., None]).round_().clamp_(-127, 127).add_(_MIDDLE[8])
            product._fill(begin, numbers.to(torch.uint8).flatten(1), scale, None)
        return product

    @classmethod
    def _empty(cls, bits: int, shape: Sequence[int], minima: bool, bias: Tensor | None, arena: Arena) -> Product:
        out, length = shape
        step = LANES * GROUP // 8 * bits + (2 if minima else 1) * LANES * 2
        data = arena.room(-(-out // LANES) * -(-length // GROUP) * step)
        return cls(out, length, bits, minima, data, None if bias is None else bias.float().contiguous())

    def _fill(self, begin: int, numbers: Tensor, scale: Tensor, minimum: Tensor | None) -> None:
        """Write outputs from `begin` on, where a block begins: numbers (n, in), scales and minima (n, groups)."""
        rows, columns = -len(numbers) % LANES, -numbers.shape[1] % GROUP
        padded = F.pad(numbers, (0, columns, 0, rows))
        parts = [_four(padded) if self.bits == 4 else _eight(padded)]
        parts += [_bytes(F.pad(values, (0, 0, 0, rows))) for values in (scale, minimum) if values is not None]
        block = begin // LANES
        torch.cat(parts, dim=-1, out=self._blocks()[block : block + len(padded) // LANES])

    def _blocks(self) -> Tensor:
        return self.data.view(-(-self.out // LANES), -(-self.inputs // GROUP), -1)

    @property
    def nbytes(self) -> int:
        return self.data.nbytes + (0 if self.bias is None else self.bias.nbytes)

    def as_c(self) -> CProduct:
        """The same for C; valid as long as this lives."""
        return CProduct(self.out, self.bits, int(self.minima), address(self.data), address(self.bias))

    def dense(self) -> Tensor:
        """(out, in) float32, exactly what is multiplied with."""
        blocks, groups = -(-self.out // LANES), -(-self.inputs // GROUP)
        wide = LANES * GROUP // 8 * self.bits
        data = self._blocks()
        numbers = data[..., :wide].reshape(blocks, groups, -1, LANES, 4)
        if self.bits == 4:
            numbers = torch.cat([numbers & 15, numbers >> 4], dim=2)
        grouped = numbers.permute(0, 3, 1, 2, 4).reshape(blocks, LANES, groups, GROUP).float()
        factors = data[..., wide:].contiguous().view(torch.float16).float().view(blocks, groups, -1, LANES)
        scale = factors[:, :, 0].transpose(1, 2)[..., None]
        minimum = factors[:, :, 1].transpose(1, 2)[..., None] if self.minima else -_MIDDLE[self.bits] * scale
        return (grouped * scale + minimum).reshape(blocks * LANES, groups * GROUP)[: self.out, : self.inputs]


def address(tensor: Tensor | None) -> Any:
    """Where a tensor's data lie, None for none."""
    return None if tensor is None else tensor.data_ptr()


def _four(numbers: Tensor) -> Tensor:
    """(blocks, groups, 256): two inputs that lie 16 apart share a byte."""
    out, length = numbers.shape
    halves = numbers.view(out // LANES, LANES, length // GROUP, 2, 4, 4).permute(3, 0, 2, 4, 1, 5)
    return (halves[0] | halves[1] << 4).flatten(2)


def _eight(numbers: Tensor) -> Tensor:
    """(blocks, groups, 512)."""
    out, length = numbers.shape
    return numbers.view(out // LANES, LANES, length // GROUP, 8, 4).permute(0, 2, 3, 1, 4).flatten(2)


def _bytes(values: Tensor) -> Tensor:
    """(out, groups) → (blocks, groups, 32): float16 numbers as bytes."""
    out, groups = values.shape
    return values.view(out // LANES, LANES, groups).transpose(1, 2).half().contiguous().view(torch.uint8)
