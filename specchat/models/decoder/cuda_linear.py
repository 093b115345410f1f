"""Linear layers of 4 to 8 bits on a CUDA device: one Triton kernel where it works.

Where it does not: torch's own kernels for few rows of 4 and 8 bits, and rebuilt weights for many.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from specchat.models.decoder.linear_layers import Linear, rebuilt, scales_and_zeros
from specchat.models.weights.grouped_codes import ROUNDED, Codes, Layout, Levels, PackedCodes
from specchat.models.weights.weight_source import GROUP, FourBit

_MANY_ROWS = 64
"""From so many rows on, 8-bit weights are turned into bfloat16: reading them no longer takes the time."""

_REBUILT_ROWS = 513
"""From so many rows on, 4-bit weights are rebuilt in bfloat16. Chosen by the bytes that this moves, 280 GB for an 8B's
whatever the number of rows; times on a device are not measured."""

_AT_ONCE = 1 << 23
"""Weights that are rebuilt at once: all of a head's would take gigabytes."""

_TILE_OUT, _TILE_IN = 8, 16

Multiply = Callable[[Tensor, PackedCodes, Tensor | None], Tensor]
"""(rows, in) times packed weights and a bias, if any: (rows, out)."""


class GroupedLinear:
    """Weights in a file's own 4 to 8 bits."""

    def __init__(self, weight: PackedCodes, bias: Tensor | None, multiply: Multiply) -> None:
        """The weights lie on a device where `multiply` works."""
        self._weight, self._multiply = weight, multiply
        self._bias = None if bias is None else bias.to(weight.low.device, torch.float32)
        self.nbytes = weight.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        return self._multiply(x.contiguous(), self._weight, self._bias)

    def rows(self, ids: Tensor) -> Tensor:
        """(n, in) float32 rows of the weights."""
        return self._weight.rows(ids).dense()


def rebuilt_product(x: Tensor, weight: PackedCodes, bias: Tensor | None) -> Tensor:
    """(rows, out) as the kernel computes them, in torch: the weights rebuilt in the format of x, some at a time."""
    parts = [F.linear(x, weight.rows(some).dense().to(x.dtype)) for some in _blocks(*weight.shape)]
    product = torch.cat(parts, dim=-1)
    return product if bias is None else product.float().add_(bias).to(x.dtype)


@lru_cache
@torch.inference_mode()
def grouped_product(device: torch.device, layout: Layout = ROUNDED) -> Multiply | str:
    """The Triton kernel, where it agrees with the definition on this device; else why it is not in use."""
    if device.type != "cuda":
        return f"it is not made for {device}"
    try:
        from specchat.models.decoder.triton_product import product
    except ImportError:
        return "Triton is not installed"
    try:
        # What multiplies bfloat16 fast has other instructions than what does not.
        dtype = torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
        weight = example(layout)
        there = GroupedLinear(PackedCodes.of(weight).to(device), None, product)
        if all(_agrees(there, weight.dense(), rows, device, dtype) for rows in (3, 80)):
            return product
        return "its products are wrong on this device"
    except Exception as error:  # compilers and devices fail in ways of their own; other products do without
        return str(error).strip().split("\n")[0] or type(error).__name__


def example(layout: Layout, out: int = 80, inputs: int = 512) -> Codes:
    """Weights of a layout that are different from place to place, the same every time."""
    numbers = torch.arange(out * inputs).mul(37).remainder((1 << layout.bits) - 1).view(out, inputs)
    groups = torch.arange(out * inputs // layout.group).view(out, -1)

    def levels(shift: int) -> Levels:
        if layout.per == 1:
            return Levels(((groups + shift) % 7 - 3.5).div(64).half())
        factors = (groups[:, :: layout.per] + shift) % 5 - 2.5
        return Levels(factors.div(2048).half(), ((groups + shift) % 43 - 10).to(torch.int8))

    return Codes(layout, numbers.to(torch.uint8), levels(0), levels(3) if layout.minimum else None)


class CudaInt4Linear:
    """4-bit weights with a scale and a zero point (bfloat16) per GROUP weights, in the order of the tensor cores.

    The kernel multiplies with bfloat16 weights (number − 8) · scale + zero, and so do the rebuilt ones.
    """

    def __init__(self, weight: FourBit, bias: Tensor | None, device: torch.device) -> None:
        self._scales = scales_and_zeros(weight).to(device)
        self._out, self._in = weight.numbers.shape
        self._inner = next(tiles for tiles in (8, 4, 2) if self._in % (tiles * _TILE_IN) == 0)
        self._packed = _pack(weight.numbers.to(device), self._inner)
        self._place_of = _places(self._inner, device)
        self._bias = None if bias is None else bias.to(device, torch.bfloat16)
        self.nbytes = self._packed.nbytes + self._scales.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        narrow = x.bfloat16()
        if len(x) < _REBUILT_ROWS:
            product = torch._weight_int4pack_mm(narrow.contiguous(), self._packed, GROUP, self._scales)
        else:
            product = torch.cat([F.linear(narrow, self._dense(some)) for some in _blocks(self._out, self._in)], dim=-1)
        return (product if self._bias is None else product.add_(self._bias)).to(x.dtype)

    def rows(self, ids: Tensor) -> Tensor:
        """(n, in) bfloat16 rows of the weights, as the kernel rebuilds them."""
        tiles = _unpack(self._packed[ids // _TILE_OUT], self._place_of).view(len(ids), _TILE_OUT, self._in)
        inside = (ids % _TILE_OUT)[:, None, None].expand(-1, 1, self._in)
        return rebuilt(tiles.gather(1, inside)[:, 0], self._scales[:, ids]).bfloat16()

    def _dense(self, outputs: slice) -> Tensor:
        """(some, in) bfloat16 weights of some outputs, as the kernel rebuilds them."""
        numbers = _unpack(self._packed[outputs.start // _TILE_OUT : outputs.stop // _TILE_OUT], self._place_of)
        return rebuilt(numbers, self._scales[:, outputs]).bfloat16()


class CudaInt8Linear:
    """8-bit weights with a scale per output; activations stay as they are."""

    def __init__(self, weight: Tensor, bias: Tensor | None, device: torch.device) -> None:
        scale = weight.abs().amax(dim=1).clamp_(min=1e-12) / 127
        self._numbers = (weight / scale[:, None]).round_().to(torch.int8).to(device)
        self._scale = scale.to(device, torch.float32)
        self._bias = None if bias is None else bias.to(device, torch.float32)
        self.nbytes = self._numbers.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        if len(x) < _MANY_ROWS:
            product = torch._weight_int8pack_mm(x.contiguous(), self._numbers, self._scale).float()
        else:  # whole numbers up to 127 are exact in bfloat16
            parts = [F.linear(x, self._numbers[some].to(x.dtype)) for some in _blocks(*self._numbers.shape)]
            product = torch.cat(parts, dim=-1).float().mul_(self._scale)
        return (product if self._bias is None else product.add_(self._bias)).to(x.dtype)

    def rows(self, ids: Tensor) -> Tensor:
        """(n, in) float32 rows of the weights."""
        return self._numbers[ids] * self._scale[ids][:, None]


@lru_cache
@torch.inference_mode()
def int4_works(device: torch.device) -> bool:
    """Whether this device multiplies 4-bit weights, few rows and many, as the definition says."""
    numbers = torch.arange(64 * 224).view(64, 224).mul(7).remainder(16).to(torch.uint8)
    scale = (torch.arange(64 * 7).view(64, 7) % 5 + 1) / 64
    whole = FourBit(numbers, scale, -7 * scale)
    try:
        return all(
            _int4_agrees(whole, columns, rows, device) for columns in (32, 64, 128) for rows in (3, _REBUILT_ROWS)
        )
    except (RuntimeError, AttributeError):
        return False


@lru_cache
@torch.inference_mode()
def int8_works(device: torch.device) -> bool:
    """Whether this device multiplies 8-bit weights as the definition says."""
    weight = torch.sin(torch.arange(64 * 128).float()).view(64, 128)
    try:
        return all(_agrees(CudaInt8Linear(weight, None, device), weight, rows, device) for rows in (3, _MANY_ROWS))
    except (RuntimeError, AttributeError):
        return False


@lru_cache
@torch.inference_mode()
def int8_pays(device: torch.device) -> bool:
    """Whether a row times 8-bit weights takes less time than times bfloat16: torch's kernel for it is a simple one."""
    if not int8_works(device):
        return False
    weight, x = torch.ones(4096, 4096), torch.ones(1, 4096, device=device, dtype=torch.bfloat16)
    narrow, eight = weight.to(device, torch.bfloat16), CudaInt8Linear(weight, None, device)
    return _seconds(lambda: eight(x), device) < _seconds(lambda: F.linear(x, narrow), device)


def _seconds(product: Callable[[], Tensor], device: torch.device) -> float:
    """How long the device takes for twenty. Waits for it."""
    product()
    torch.cuda.synchronize(device)
    began = time.perf_counter()
    for _ in range(20):
        product()
    torch.cuda.synchronize(device)
    return time.perf_counter() - began


def _int4_agrees(whole: FourBit, columns: int, rows: int, device: torch.device) -> bool:
    groups = columns // GROUP
    weight = FourBit(whole.numbers[:, :columns], whole.scale[:, :groups], whole.minimum[:, :groups])
    grouped = weight.numbers.float().view(64, groups, GROUP) * weight.scale[..., None] + weight.minimum[..., None]
    return _agrees(CudaInt4Linear(weight, None, device), grouped.view(64, columns), rows, device)


def _agrees(
    product: Linear, dense: Tensor, rows: int, device: torch.device, dtype: torch.dtype = torch.bfloat16
) -> bool:
    x = torch.cos(torch.arange(rows * dense.shape[1]).float()).view(rows, -1).to(dtype)
    expected = x.float() @ dense.t()
    error = (product(x.to(device)).float().cpu() - expected).abs().max() / expected.abs().max()
    return bool(error < 0.02)


def _blocks(out: int, length: int) -> list[slice]:
    """Outputs in runs of whole tiles with no more than _AT_ONCE weights, or one tile's."""
    step = max(1, _AT_ONCE // length // _TILE_OUT) * _TILE_OUT
    return [slice(at, min(at + step, out)) for at in range(0, out, step)]


def _pack(numbers: Tensor, inner: int) -> Tensor:
    """(out / 8, in / (16 · inner), 32, inner / 2) int32 of (out, in) uint8 numbers up to 15."""
    pairs = (numbers[:, ::2] << 4) | numbers[:, 1::2]
    return torch._convert_weight_to_int4pack(pairs.contiguous(), inner)


def _unpack(packed: Tensor, place_of: Tensor) -> Tensor:
    """(out, in) int32 numbers, the inverse of `_pack`; `place_of` is what `_places` found."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=packed.device)
    tiles = ((packed.flatten(2)[..., None] >> shifts) & 15).flatten(2)[..., place_of]
    down, across, size = tiles.shape
    inside = tiles.view(down, across, _TILE_OUT, size // _TILE_OUT)
    return inside.transpose(1, 2).reshape(down * _TILE_OUT, -1)


def _places(inner: int, device: torch.device) -> Tensor:
    """(8 · 16 · inner,) where in a packed tile each of its weights lies, found out by packing their numbers.

    The order is the device's business. A tile's weights are numbered, and the three digits of the numbers packed.
    """
    shape = (_TILE_OUT, _TILE_IN * inner)
    numbered = torch.arange(shape[0] * shape[1], device=device)
    as_they_lie = torch.arange(shape[0] * shape[1], device=device)
    found = torch.zeros_like(numbered)
    for shift in (0, 4, 8):
        digit = ((numbered >> shift) & 15).to(torch.uint8).view(shape)
        found += _unpack(_pack(digit, inner), as_they_lie).flatten().long() << shift
    return torch.argsort(found)
