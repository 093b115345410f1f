"""A weight as the native kernels read it: whole numbers in blocks of outputs, a scale per 32 inputs of an output."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from specchat.models.cpu_kernels.arena import Arena
from specchat.models.cpu_kernels.tensor_pointers import maybe_pointer, pointer
from specchat.models.weights.weight_source import GROUP

LANES = 16


class CProduct(ctypes.Structure):
    """`Product` of product.h."""

    _fields_ = [
        *[(name, ctypes.c_int32) for name in ("in", "out", "bits", "minima")],
        ("bytes", ctypes.c_int64),
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
    def empty(cls, out: int, inputs: int, bits: int, minima: bool, bias: Tensor | None, arena: Arena) -> Product:
        """A product of zeros, for a packer to fill."""
        step = LANES * GROUP // 8 * bits + (2 if minima else 1) * LANES * 2
        data = arena.room(-(-out // LANES) * -(-inputs // GROUP) * step)
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
        """The same for C; valid as long as this lives."""
        data = pointer("a weight", self.data, torch.uint8, len(self.data))
        bias = maybe_pointer("a bias", self.bias, torch.float32, self.out)
        return CProduct(self.inputs, self.out, self.bits, int(self.minima), len(self.data), data, bias)
