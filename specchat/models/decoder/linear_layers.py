"""Linear layers per precision on a processor, and which of them work on this one.

Within a precision every row count computes the same function of the same weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from specchat.models.weights.weight_source import GROUP, FourBit

_PREFILL_ROWS = 96
"""From so many rows on, 4-bit weights are unpacked for the pass: multiplying is then dearer than unpacking."""


_FEWEST_ROWS = 4
"""oneDNN multiplies four rows of whole numbers four times faster than two (Qwen2.5-Coder-0.5B: 46 ms against 190)."""


class Linear(Protocol):
    """A linear layer: (n, in) → (n, out), both in the activations' format."""

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the layer to every row."""

    @property
    def nbytes(self) -> int:
        """Bytes its weights take."""


class Table(Linear, Protocol):
    """A layer on a device whose rows tokens are looked up in."""

    def rows(self, ids: Tensor) -> Tensor:
        """(n, in) rows of the weights, of (n,) int64 numbers on the device. Does not wait."""


class DenseLinear:
    """Weights in float32 or bfloat16 as torch multiplies them anywhere."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = weight
        self._bias = None if bias is None else bias.to(weight)

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x.to(self.weight.dtype), self.weight, self._bias).to(x.dtype)

    def rows(self, ids: Tensor) -> Tensor:
        """(n, in) rows of the weights."""
        return F.embedding(ids, self.weight)

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes


class PackedLinear:
    """bfloat16 weights in oneDNN's own order: nearly flat up to 16 rows on processors with bfloat16."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.nbytes = weight.nbytes
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.bfloat16(), 16)
        self._bias = None if bias is None else bias.bfloat16()

    def __call__(self, x: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x.bfloat16(), self._weight, self._bias, "none", [], "")
        return product.to(x.dtype)


class Int8Linear:
    """8-bit weights, one scale per output; activations in two 8-bit digits, with a scale per row.

    A row is written as scale · (high + low / 254): 15 bits in all, as two rows of one 8-bit product. The product is
    nearly flat in its rows, so the second digit costs little, while leaving it out costs most of what 8 bits lose
    (SmolLM2-135M: divergence from the unrounded model 0.045 with one digit, 0.005 with two). Scales are a row's own,
    so no row sees another, and the products are whole numbers: the same however many rows there are.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        scale = weight.abs().amax(dim=1).clamp_(min=1e-12) / 127
        numbers = (weight / scale[:, None]).round_().to(torch.int8)
        self.nbytes = numbers.nbytes
        self._weight = torch.ops.onednn.qlinear_prepack(numbers, None)
        self._scale = scale
        self._zero = torch.zeros(len(scale), dtype=torch.int32)
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        scale = x.abs().amax(dim=-1, keepdim=True).mul_(1 / 127).clamp_(min=1e-12)
        exact = x.div(scale)
        high = exact.round()
        low = exact.sub_(high).mul_(254).round_()
        rows = len(x)
        digits = torch.cat([high, low]).to(torch.int8)
        if rows == 1:
            digits = F.pad(digits, (0, 0, 0, _FEWEST_ROWS - 2))
        product: Tensor = torch.ops.onednn.qlinear_pointwise(
            digits, 1.0, 0, self._weight, self._scale, self._zero, None, 1.0, 0, torch.float32, "none", [], ""
        )
        product = product[:rows].add_(product[rows : 2 * rows], alpha=1 / 254).mul_(scale)
        return product if self._bias is None else product.add_(self._bias)


def scales_and_zeros(weight: FourBit) -> Tensor:
    """(in / GROUP, out, 2) bfloat16: torch's kernels multiply with (number − 8) · scale + zero."""
    zero = weight.minimum + 8 * weight.scale
    return torch.stack([weight.scale.t(), zero.t()], dim=-1).bfloat16().contiguous()


def rebuilt(numbers: Tensor, scales: Tensor) -> Tensor:
    """(out, in) float32 weights of (out, in) numbers and what `scales_and_zeros` made, as those kernels have them."""
    scale, zero = scales.float().unbind(-1)
    grouped = numbers.view(len(numbers), -1, GROUP).float().sub_(8)
    return grouped.mul_(scale.t()[..., None]).add_(zero.t()[..., None]).view(numbers.shape)


class Int4Linear:
    """4-bit weights with a scale and a zero point (bfloat16) per GROUP weights, as torch's own kernel takes them.

    The kernel multiplies scales out in float32. For many rows the same dequantised weights are rebuilt as the sum of
    two bfloat16 matrices, which keeps 16 bits of them, and multiplied with the packed units of the processor.
    """

    def __init__(self, weight: FourBit, bias: Tensor | None) -> None:
        self._scales = scales_and_zeros(weight)
        self._packed = torch._convert_weight_to_int4pack_for_cpu(weight.numbers.int(), 1)
        self._shape = weight.numbers.shape
        # The packed order depends on the processor; where it is not the one known here, the numbers are kept as well.
        known = _order_is_known(weight.numbers, self._packed)
        self._numbers = None if known else weight.numbers
        self.nbytes = self._packed.nbytes + self._scales.nbytes + (0 if known else weight.numbers.nbytes)
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        narrow = x.bfloat16()
        if len(x) < _PREFILL_ROWS:
            product = torch._weight_int4pack_mm_for_cpu(narrow, self._packed, GROUP, self._scales).to(x.dtype)
        else:
            product = self._unpacked_product(narrow).to(x.dtype)
        return product if self._bias is None else product.add_(self._bias)

    def _unpacked_product(self, narrow: Tensor) -> Tensor:
        weight = self._dense()
        high = weight.bfloat16()
        low = weight.sub_(high.float()).bfloat16()
        return F.linear(narrow, high).float().add_(F.linear(narrow, low))

    def _dense(self) -> Tensor:
        """(out, in) float32, exactly what the kernel multiplies with."""
        return rebuilt(_unpacked(self._packed, *self._shape) if self._numbers is None else self._numbers, self._scales)


class Stacked:
    """Layers that share their input, one after another along the output."""

    def __init__(self, parts: Sequence[Linear]) -> None:
        self._parts = parts

    def __call__(self, x: Tensor) -> Tensor:
        return torch.cat([part(x) for part in self._parts], dim=-1)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self._parts)


_PACKED_ROWS = 64


def _unpacked(packed: Tensor, out: int, length: int) -> Tensor:
    """(out, in) uint8 from AVX-512's order: 64 outputs at a time, column by column, the upper 32 in the high halves."""
    blocks = packed.view(out // _PACKED_ROWS, length, _PACKED_ROWS // 2)
    halves = torch.stack([blocks & 15, blocks >> 4], dim=2)  # (blocks, in, 2, 32)
    return halves.view(-1, length, _PACKED_ROWS).transpose(1, 2).reshape(out, length)


def _order_is_known(numbers: Tensor, packed: Tensor) -> bool:
    """Whether `_unpacked` undoes this processor's order; looking at one block tells."""
    out, length = numbers.shape
    if out % _PACKED_ROWS:
        return False
    first = packed.flatten()[: _PACKED_ROWS // 2 * length]
    return torch.equal(_unpacked(first, _PACKED_ROWS, length), numbers[:_PACKED_ROWS])


_OUT, _IN, _ROWS = 64, 2 * GROUP, 3
"""Sizes with which each product is tried out once: torch's builds differ by platform."""


@lru_cache
def int8_works() -> bool:
    """Whether weights of 8 bits can be multiplied with as the definition says."""
    return _agrees(lambda: Int8Linear(_weight(), None), _weight())


@lru_cache
def int4_works() -> bool:
    """Whether weights of 4 bits can be multiplied with as the definition says."""
    numbers = torch.arange(_OUT * _IN).view(_OUT, _IN) % 16
    scale = torch.full((_OUT, _IN // GROUP), 0.125)
    groups = FourBit(numbers.to(torch.uint8), scale, -scale)
    return _agrees(lambda: Int4Linear(groups, None), numbers * 0.125 - 0.125)


@lru_cache
def packed_works() -> bool:
    """Whether weights in bfloat16 can be laid out for this processor, and multiplied with."""
    return _agrees(lambda: PackedLinear(_weight(), None), _weight())


def _weight() -> Tensor:
    return torch.sin(torch.arange(_OUT * _IN).float()).view(_OUT, _IN)


@torch.inference_mode()
def _agrees(build: Callable[[], Linear], dense: Tensor) -> bool:
    x = torch.cos(torch.arange(_ROWS * _IN).float()).view(_ROWS, _IN)
    expected = x @ dense.t()
    try:
        found = build()(x)
    except (RuntimeError, AttributeError):  # the operation is not in this build, or not for this processor
        return False
    return found.shape == expected.shape and bool((found - expected).abs().max() < 0.05 * expected.abs().max())
