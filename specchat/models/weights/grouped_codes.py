"""Weights of 4 to 8 bits in a GGUF file's own numbers: codes with a scale, and a minimum, per group. In torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from specchat.core.device_copy import to_device
from specchat.models.weights.gguf_header import KEPT, Kind
from specchat.models.weights.weight_source import GROUP, FourBit, StoredRows

IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""What the 4-bit codes of IQ4_NL and IQ4_XS stand for, as ggml defines it."""


@dataclass(frozen=True)
class Layout:
    """How the weights of a format are made of codes: (code − offset) · scale, or code · scale + minimum.

    Args:
        bits: of a code: 4, 5, 6 or 8.
        group: weights that share a scale and a minimum: 16 or 32.
        per: groups whose scales are steps of 8 bits of one factor; 1 where each group has its own factor.
        table: whether a code is a place in `IQ4_VALUES`.
    """

    bits: int
    group: int = GROUP
    per: int = 1
    offset: int = 0
    minimum: bool = False
    table: bool = False


@dataclass(frozen=True)
class Levels:
    """A scale or a minimum per group: a factor, or a factor of several groups times a step of each.

    Args:
        factors: (out, in / group / per) float16.
        steps: (out, in / group) int8; None where each group has its own factor.
    """

    factors: Tensor
    steps: Tensor | None = None

    @classmethod
    def joined(cls, parts: Sequence[Levels]) -> Levels:
        steps = [part.steps for part in parts if part.steps is not None]
        return cls(torch.cat([part.factors for part in parts]), torch.cat(steps) if steps else None)

    def to(self, device: torch.device) -> Levels:
        return Levels(self.factors.to(device), None if self.steps is None else self.steps.to(device))

    def rows(self, which: Tensor | slice) -> Levels:
        return Levels(self.factors[which], None if self.steps is None else self.steps[which])

    @property
    def nbytes(self) -> int:
        return self.factors.nbytes + (0 if self.steps is None else self.steps.nbytes)

    def values(self) -> Tensor:
        """(out, in / group) float32."""
        if self.steps is None:
            return self.factors.float()
        return self.factors.float().repeat_interleave(self.steps.shape[1] // self.factors.shape[1], 1) * self.steps


@dataclass(frozen=True)
class Codes:
    """Weights of some rows.

    Args:
        numbers: (out, in) uint8, the codes.
    """

    layout: Layout
    numbers: Tensor
    scale: Levels
    minimum: Levels | None = None

    @classmethod
    def of_four_bit(cls, weight: FourBit) -> Codes:
        """Scales and minima are rounded to float16 where they take more."""
        return cls(ROUNDED, weight.numbers, Levels(weight.scale.half()), Levels(weight.minimum.half()))

    def four_bit(self) -> FourBit:
        """The same weights; their layout has 4 bits and no table."""
        scale = self.scale.values()
        minimum = -self.layout.offset * scale if self.minimum is None else self.minimum.values()
        return FourBit(self.numbers, scale, minimum)

    def dense(self) -> Tensor:
        """(out, in) float32."""
        if self.layout.table:
            values = _iq4_values(self.numbers.device)[self.numbers.long()]
        else:
            values = self.numbers.float() - self.layout.offset
        grouped = values.view(len(values), -1, self.layout.group) * self.scale.values()[..., None]
        if self.minimum is not None:
            grouped += self.minimum.values()[..., None]
        return grouped.view(values.shape)


_AT_ONCE = 1 << 24
"""Weights that are packed at once: they take several bytes each meanwhile."""


@dataclass(frozen=True)
class PackedCodes:
    """Codes as a device keeps them: halves of 4 bits, what a code has beyond them, and the scales.

    The 32 codes of a block stand in pairs: weight j and weight j + 16.

    Args:
        low: (out, in / 2) uint8, the low halves of a pair; of 8 bits (out, in), whole codes.
        high: of 5 bits (out, in / 8), two bits a pair, of 6 bits (out, in / 4), four bits a pair; None for others.
    """

    layout: Layout
    low: Tensor
    high: Tensor | None
    scale: Levels
    minimum: Levels | None

    @classmethod
    def of(cls, codes: Codes) -> PackedCodes:
        """Packed on the device that the codes lie on."""
        layout, pairs = codes.layout, codes.numbers.view(len(codes.numbers), -1, 2, GROUP // 2)
        if layout.bits == 8:
            return cls(layout, codes.numbers, None, codes.scale, codes.minimum)
        low = (pairs[:, :, 0] & 15 | pairs[:, :, 1] << 4).flatten(1)
        high = None
        if (more := layout.bits - 4) > 0:
            both = (pairs[:, :, 0] >> 4 | pairs[:, :, 1] >> 4 << more).flatten(1)
            fields = both.view(len(both), -1, 4 // more)
            high = torch.stack([fields[..., place] << 2 * more * place for place in range(4 // more)], dim=0).sum(
                0, dtype=torch.uint8
            )
        return cls(layout, low, high, codes.scale, codes.minimum)

    @classmethod
    def of_stored(cls, stored: StoredRows, device: torch.device) -> PackedCodes:
        """Rows of a format of `LAYOUTS`, unpacked and packed again on the device, some at a time."""
        step = max(1, _AT_ONCE // stored.length)
        parts = []
        for at in range(0, stored.rows, step):
            data = to_device(torch.from_numpy(stored.some(slice(at, at + step)).copied()), device)
            parts.append(cls.of(unpacked(stored.kind, data, stored.length)))
        return cls.joined(parts)

    @classmethod
    def joined(cls, parts: Sequence[PackedCodes]) -> PackedCodes:
        """Rows below rows, all of one layout."""
        first = parts[0]
        if len(parts) == 1:
            return first
        high = None if first.high is None else torch.cat([part.high for part in parts if part.high is not None])
        minima = [part.minimum for part in parts if part.minimum is not None]
        scale = Levels.joined([part.scale for part in parts])
        low, minimum = torch.cat([part.low for part in parts]), Levels.joined(minima) if minima else None
        return cls(first.layout, low, high, scale, minimum)

    def to(self, device: torch.device) -> PackedCodes:
        high = None if self.high is None else self.high.to(device)
        minimum = None if self.minimum is None else self.minimum.to(device)
        return PackedCodes(self.layout, self.low.to(device), high, self.scale.to(device), minimum)

    @property
    def is_finite(self) -> bool:
        """Whether its scales and minima are finite numbers, and so its weights."""
        levels = [self.scale, *([] if self.minimum is None else [self.minimum])]
        return all(bool(some.factors.isfinite().all()) for some in levels)

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        out, held = self.low.shape
        return out, held if self.layout.bits == 8 else 2 * held

    @property
    def nbytes(self) -> int:
        levels = self.scale.nbytes + (0 if self.minimum is None else self.minimum.nbytes)
        return self.low.nbytes + (0 if self.high is None else self.high.nbytes) + levels

    def rows(self, which: Tensor | slice) -> Codes:
        layout, low = self.layout, self.low[which]
        minimum = None if self.minimum is None else self.minimum.rows(which)
        if layout.bits == 8:
            return Codes(layout, low, self.scale.rows(which), minimum)
        pairs = torch.stack([low & 15, low >> 4], dim=1)
        if self.high is not None:
            more = layout.bits - 4
            held, ones = self.high[which], (1 << more) - 1
            both = torch.stack([held >> 2 * more * place for place in range(4 // more)], dim=-1).flatten(1)
            pairs |= torch.stack([both & ones, both >> more & ones], dim=1) << 4
        numbers = pairs.view(len(low), 2, -1, GROUP // 2).transpose(1, 2).flatten(1)
        return Codes(layout, numbers, self.scale.rows(which), minimum)


LAYOUTS: dict[int, Layout] = {
    Kind.Q4_0: Layout(4, offset=8),
    Kind.Q4_1: Layout(4, minimum=True),
    Kind.Q4_K: Layout(4, per=8, minimum=True),
    Kind.Q5_0: Layout(5, offset=16),
    Kind.Q5_1: Layout(5, minimum=True),
    Kind.Q5_K: Layout(5, per=8, minimum=True),
    Kind.Q6_K: Layout(6, group=16, per=16, offset=32),
    Kind.Q8_0: Layout(8, offset=128),
    Kind.IQ4_NL: Layout(4, table=True),
    Kind.IQ4_XS: Layout(4, per=8, table=True),
}
"""Formats whose numbers can be kept as they are. The factors of a block are its first or its last bytes, as float16."""

ROUNDED = LAYOUTS[Kind.Q4_1]
"""The layout of weights that are rounded to 4 bits here."""


def unpacked(kind: int, data: Tensor, length: int) -> Codes:
    """The codes of (rows, bytes per row) uint8 blocks of a format of `LAYOUTS`, on the device of `data`."""
    chosen = Kind(kind)
    layout = LAYOUTS[chosen]
    block = GROUP if layout.per == 1 else layout.group * layout.per
    blocks = data.view(len(data), length // block, -1)
    numbers, steps, minimum_steps = _UNPACK[chosen](blocks)
    at = 208 if chosen == Kind.Q6_K else 0
    scale = Levels(_halves(blocks, at), None if steps is None else steps.view(len(data), -1).to(torch.int8))
    minimum = None
    if layout.minimum:
        stored = _halves(blocks, 2)
        minimum = Levels(stored)
        if minimum_steps is not None:  # blocks of 256 subtract their minima
            minimum = Levels(-stored, minimum_steps.view(len(data), -1).to(torch.int8))
    return Codes(layout, numbers.reshape(len(data), -1), scale, minimum)


@lru_cache
def _iq4_values(device: torch.device) -> Tensor:
    """On the device once: recorded passes cannot copy from the host."""
    return torch.tensor(IQ4_VALUES, dtype=torch.float32, device=device)


_Unpacked = tuple[Tensor, Tensor | None, Tensor | None]


def _of_32(codes: int, fifth: int | None = None) -> Callable[[Tensor], _Unpacked]:
    """Blocks of 32: 16 bytes of halves at byte `codes`, and 4 of fifth bits where there are any."""

    def unpack(blocks: Tensor) -> _Unpacked:
        numbers = _nibbles(blocks[..., codes:])
        if fifth is not None:
            numbers |= _bits(blocks[..., fifth : fifth + 4], 8).flatten(-2).view(numbers.shape) << 4
        return numbers, None, None

    return unpack


def _q4_k(blocks: Tensor) -> _Unpacked:
    """Two float16 factors, eight 6-bit scales and eight 6-bit minima in 12 bytes, then the numbers."""
    return _nibbles(blocks[..., 16:].view(*blocks.shape[:2], 4, 32)), *_six_bit_steps(blocks)


def _q5_k(blocks: Tensor) -> _Unpacked:
    """As Q4_K, with the fifth bits before the numbers: bit i of byte j is the one of weight 32 · i + j."""
    numbers = _nibbles(blocks[..., 48:].view(*blocks.shape[:2], 4, 32))
    numbers |= _bits(blocks[..., 16:48], 8).transpose(-1, -2).reshape(numbers.shape) << 4
    return numbers, *_six_bit_steps(blocks)


def _six_bit_steps(blocks: Tensor) -> tuple[Tensor, Tensor]:
    low, middle, high = (blocks[..., 4 + 4 * i : 8 + 4 * i] for i in range(3))
    scales = torch.cat([low & 63, (high & 15) | (low >> 6 << 4)], dim=-1)
    minima = torch.cat([middle & 63, (high >> 4) | (middle >> 6 << 4)], dim=-1)
    return scales, minima


def _q6_k(blocks: Tensor) -> _Unpacked:
    """Low halves of the numbers, their two high bits, sixteen 8-bit scales, a float16 factor."""
    shape = (*blocks.shape[:2], 2, -1, 32)
    low, high = blocks[..., :128].view(shape), blocks[..., 128:192].view(shape)
    numbers = torch.cat([low & 15, low >> 4], dim=-2)
    numbers |= ((torch.cat([high, high >> 2, high >> 4, high >> 6], dim=-2)) & 3) << 4
    return numbers, blocks[..., 192:208].contiguous().view(torch.int8), None


def _iq4_xs(blocks: Tensor) -> _Unpacked:
    """A factor, two bytes of the scales' high bits, four of their low halves, then the numbers."""
    high = torch.stack([blocks[..., 2:4] >> shift & 3 for shift in (0, 2, 4, 6)], dim=-1).flatten(-2)
    low = torch.stack([blocks[..., 4:8] & 15, blocks[..., 4:8] >> 4], dim=-1).flatten(-2)
    numbers = _nibbles(blocks[..., 8:].view(*blocks.shape[:2], 8, 16))
    return numbers, (low | high << 4).to(torch.int8) - 32, None


_UNPACK: dict[Kind, Callable[[Tensor], _Unpacked]] = {
    Kind.Q4_0: _of_32(2),
    Kind.Q4_1: _of_32(4),
    Kind.Q4_K: _q4_k,
    Kind.Q5_0: _of_32(6, fifth=2),
    Kind.Q5_1: _of_32(8, fifth=4),
    Kind.Q5_K: _q5_k,
    Kind.Q6_K: _q6_k,
    Kind.Q8_0: lambda blocks: (blocks[..., 2:] ^ 128, None, None),
    Kind.IQ4_NL: _of_32(2),
    Kind.IQ4_XS: _iq4_xs,
}
assert _UNPACK.keys() == LAYOUTS.keys() == {*KEPT}


def _halves(blocks: Tensor, at: int) -> Tensor:
    """(rows, blocks) the float16 number at byte `at` of every block."""
    return blocks[..., at : at + 2].contiguous().view(torch.float16)[..., 0]


def _nibbles(packed: Tensor) -> Tensor:
    """(…, bytes) → (…, 2, bytes): the low halves, then the high ones."""
    return torch.stack([packed & 15, packed >> 4], dim=-2)


def _bits(packed: Tensor, count: int) -> Tensor:
    """(…, bytes) → (…, bytes, count), the lowest first."""
    return torch.stack([packed >> bit & 1 for bit in range(count)], dim=-1)
