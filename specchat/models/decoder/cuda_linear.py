"""Linear layers of 4 and 8 bits on a CUDA device: torch's own kernels for few rows, rebuilt weights for many."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from specchat.models.weights.weight_source import GROUP, FourBit

_MANY_ROWS = 64
"""From so many rows on, 8-bit weights are turned into bfloat16: reading them no longer takes the time."""

_REBUILT_ROWS = 512
"""From so many rows on, 4-bit weights are rebuilt in bfloat16. Chosen by the bytes that this moves, 280 GB for an 8B's
whatever the number of rows; times on a device are not measured."""

_AT_ONCE = 1 << 23
"""Weights that are rebuilt at once: all of a head's would take gigabytes."""

_TILE_OUT, _TILE_IN = 8, 16


class CudaInt4Linear:
    """4-bit weights with a scale and a zero point (bfloat16) per GROUP weights, in the order of the tensor cores.

    The kernel multiplies with bfloat16 weights (number − 8) · scale + zero, and so do the rebuilt ones.
    """

    def __init__(self, weight: FourBit, bias: Tensor | None, device: torch.device) -> None:
        scale = weight.scale.bfloat16()
        zero = (weight.minimum + 8 * weight.scale).bfloat16()
        self._scales = torch.stack([scale.t(), zero.t()], dim=-1).contiguous().to(device)  # (in / GROUP, out, 2)
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

    def _dense(self, outputs: slice) -> Tensor:
        """(some, in) bfloat16 weights of some outputs, as the kernel rebuilds them."""
        numbers = _unpack(self._packed[outputs.start // _TILE_OUT : outputs.stop // _TILE_OUT], self._place_of)
        scale, zero = self._scales[:, outputs].float().unbind(-1)
        grouped = numbers.view(len(numbers), -1, GROUP).float().sub_(8)
        dense = grouped.mul_(scale.t()[..., None]).add_(zero.t()[..., None])
        return dense.view(numbers.shape).bfloat16()


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


def _agrees(product: CudaInt4Linear | CudaInt8Linear, dense: Tensor, rows: int, device: torch.device) -> bool:
    x = torch.cos(torch.arange(rows * dense.shape[1]).float()).view(rows, -1).bfloat16()
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
