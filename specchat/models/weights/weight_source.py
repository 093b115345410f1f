"""The interface through which a decoder's weights are read: one set of names for all file formats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from specchat.models.weights.gguf_header import Kind

_OF_DTYPE = {torch.float32: Kind.F32, torch.float16: Kind.F16, torch.bfloat16: Kind.BF16}


@dataclass(frozen=True)
class StoredRows:
    """A matrix that has not been unpacked yet.

    Args:
        kind: GGUF's number of the rows' format.
        data: (rows, bytes per row) uint8, without gaps.
        length: how many numbers a row holds.
        order: (rows) int32, which of them stand where; None for all, as they lie.
    """

    kind: int
    data: np.ndarray[Any, np.dtype[np.uint8]]
    length: int
    order: np.ndarray[Any, np.dtype[np.int32]] | None = None

    @classmethod
    def of_tensor(cls, weight: Tensor) -> StoredRows | None:
        """(rows, length) floating point numbers; None for a format or a device where they cannot be read so."""
        kind = _OF_DTYPE.get(weight.dtype)
        if kind is None or weight.device.type != "cpu":
            return None
        return cls(kind, weight.detach().contiguous().view(torch.uint8).numpy(), weight.shape[1])

    @property
    def rows(self) -> int:
        return len(self.data if self.order is None else self.order)

    def some(self, rows: slice) -> StoredRows:
        """A few of the rows. Nothing is copied."""
        if self.order is None:
            return replace(self, data=self.data[rows])
        return replace(self, order=self.order[rows])

    def permuted(self, order: Tensor) -> StoredRows:
        """The same rows in another order: row order[i] stands at i. Nothing is copied."""
        assert self.order is None, "rows are put into another order once"
        return replace(self, order=order.to(torch.int32).numpy())


GROUP = 32
"""Weights that share a scale and a minimum in the 4-bit formats."""


@dataclass(frozen=True)
class FourBit:
    """Weights as w = numbers · scale + minimum, a scale and a minimum per GROUP weights of a row.

    Args:
        numbers: (out, in) uint8, 0 to 15.
        scale, minimum: (out, in / GROUP) float32.
    """

    numbers: Tensor
    scale: Tensor
    minimum: Tensor

    @classmethod
    def rounded(cls, weight: Tensor) -> FourBit:
        """(out, in) float32 weights, from the least to the largest of each group in 15 steps."""
        grouped = weight.view(len(weight), -1, GROUP)
        minimum = grouped.amin(dim=-1).half().float()
        scale = ((grouped.amax(dim=-1) - minimum) / 15).half().float()
        numbers = (grouped - minimum[..., None]).div_(scale.clamp(min=1e-12)[..., None]).round_().clamp_(0, 15)
        return cls(numbers.to(torch.uint8).flatten(1), scale, minimum)

    @classmethod
    def joined(cls, parts: Sequence[FourBit]) -> FourBit:
        """Rows below rows."""
        numbers, scale, minimum = zip(*((part.numbers, part.scale, part.minimum) for part in parts), strict=True)
        return cls(torch.cat(numbers), torch.cat(scale), torch.cat(minimum))

    def permuted(self, order: Tensor) -> FourBit:
        """The same rows in another order."""
        return FourBit(self.numbers[order], self.scale[order], self.minimum[order])


ALL_ROWS = slice(None)
RowChoice = slice | list[int]
"""Which rows of a weight: neighbours, or single ones in any order."""


@dataclass(frozen=True)
class TensorFacts:
    """A tensor's size and format, known without reading it.

    Args:
        label: the file it is in and its name there.
        sizes: None for a tensor that is missing.
        strange: its format, if it cannot be converted to floating point.
    """

    label: str
    sizes: tuple[int, ...] | None
    strange: str = ""


class WeightSource(Protocol):
    """Weights by our own names: `embed`, `head`, `norm`, and per layer `q`, `k`, `v`, `o`, `gate`, `up`, `down`, …"""

    @property
    def interleaved(self) -> bool:
        """Whether rows of q and k that rotate together already lie side by side."""

    @property
    def rounds(self) -> bool:
        """Whether weights may be taken in 4 bits where the source has more."""

    def stored(self, name: str, layer: int | None = None) -> StoredRows | None:
        """A weight as it lies, or None where it must be asked for in float32."""

    def dense(self, name: str, layer: int | None = None, part: str = "weight", rows: RowChoice = ALL_ROWS) -> Tensor:
        """A weight in float32, or some of its rows."""

    def outputs(self, name: str, layer: int | None = None) -> int:
        """How many rows a weight has."""

    def has(self, name: str, layer: int | None = None, part: str = "weight") -> bool:
        """Whether there is such a weight."""

    def about(self, name: str, layer: int | None = None, part: str = "weight") -> TensorFacts:
        """What can be said of it, also of one that is missing."""

    def four_bit(self, name: str, layer: int | None = None) -> FourBit | None:
        """The weight in 4 bits, unpacked, where the source has it so."""

    def embed(self, ids: list[int]) -> Tensor:
        """(n, d) float32 rows of the embedding."""

    def let_go(self) -> None:
        """Give back memory that what was read so far takes; it can be read again."""


def head_rows(source: WeightSource, tied: bool, tokens: Sequence[int]) -> Tensor:
    """(n, d) float32 rows of the head for these tokens, with the final norm's factors in them."""
    return source.dense("embed" if tied else "head", rows=list(tokens)) * source.dense("norm")
