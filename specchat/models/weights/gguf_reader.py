"""Reads GGUF files without unpacking them: a header in milliseconds, tensors as views of the file."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from specchat.errors import DamagedWeights
from specchat.models.weights.gguf_header import TensorHeader, read_header

if TYPE_CHECKING:  # imported where a file is read: weights of other formats need no such package
    from gguf import GGMLQuantizationType

GROUP = 32
"""Weights that share a scale and a minimum in the 4-bit formats."""


@dataclass(frozen=True)
class StoredTensor:
    """One tensor as it lies in the file: rows of packed blocks.

    Args:
        shape: torch's order, the row length last.
        data: (rows, bytes per row) uint8, a view of the file.
    """

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    data: np.ndarray[Any, np.dtype[np.uint8]]

    def rows(self, ids: list[int] | slice = slice(None)) -> Tensor:
        """Some rows (all by default), dequantised to float32."""
        from gguf.quants import dequantize

        values = dequantize(self._typed(np.array(self.data[ids])), self.kind)
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)).view(-1, *self.shape[1:])

    def dense(self) -> Tensor:
        """The whole tensor, dequantised to float32."""
        return self.rows().view(self.shape)

    def groups(self) -> FourBit | None:
        """The file's own 4-bit numbers, scales and minima, or None where the format is another."""
        from gguf import GGMLQuantizationType

        unpack = {
            GGMLQuantizationType.Q4_0: _groups_q4_0,
            GGMLQuantizationType.Q4_1: _groups_q4_1,
            GGMLQuantizationType.Q4_K: _groups_q4_k,
        }.get(self.kind)
        return unpack(self.data, self.shape[-1]) if unpack else None

    def _typed(self, data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        from gguf import GGMLQuantizationType

        plain = {GGMLQuantizationType.F32: np.float32, GGMLQuantizationType.F16: np.float16}.get(self.kind)
        return data.view(plain) if plain else data


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


class GgufReader:
    """The tensors of a GGUF file by name."""

    def __init__(self, path: Path) -> None:
        from gguf import GGMLQuantizationType

        header = read_header(path)
        self.path = path
        self.metadata = header.metadata
        self._mapped = header.data
        data = np.frombuffer(header.data, dtype=np.uint8)
        try:
            self._tensors = {
                tensor.name: _stored(tensor, GGMLQuantizationType(tensor.kind), data[header.start + tensor.offset :])
                for tensor in header.tensors
            }
        except ValueError as error:  # a format that the installed package is too old for
            raise DamagedWeights(f"{path} cannot be read: {error}") from None

    def tensor(self, name: str) -> StoredTensor:
        return self._tensors[name]

    def let_go(self) -> None:
        """Give the memory of the pages read so far back to the system; they are read again when needed."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._mapped.madvise(mmap.MADV_DONTNEED)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors


def _stored(
    tensor: TensorHeader, kind: GGMLQuantizationType, data: np.ndarray[Any, np.dtype[np.uint8]]
) -> StoredTensor:
    rows = math.prod(tensor.shape[:-1])
    return StoredTensor(tensor.name, tensor.shape, kind, data[: tensor.nbytes].reshape(rows, -1))


def _nibbles(packed: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """(…, bytes) → (…, 2, bytes): the low halves, then the high ones."""
    return np.stack([packed & 15, packed >> 4], axis=-2)


def _halves(blocks: np.ndarray[Any, Any], at: int) -> np.ndarray[Any, Any]:
    """The float16 number at byte `at` of every block, as float32."""
    return np.ascontiguousarray(blocks[..., at : at + 2]).view(np.float16)[..., 0].astype(np.float32)


def _four_bit(numbers: np.ndarray[Any, Any], scale: np.ndarray[Any, Any], minimum: np.ndarray[Any, Any]) -> FourBit:
    rows = numbers.shape[0]
    return FourBit(
        torch.from_numpy(np.ascontiguousarray(numbers.reshape(rows, -1))),
        torch.from_numpy(np.ascontiguousarray(scale.reshape(rows, -1))),
        torch.from_numpy(np.ascontiguousarray(minimum.reshape(rows, -1))),
    )


def _groups_q4_0(data: np.ndarray[Any, Any], length: int) -> FourBit:
    blocks = data.reshape(len(data), length // 32, 18)
    scale = _halves(blocks, 0)
    return _four_bit(_nibbles(blocks[..., 2:]), scale, -8 * scale)


def _groups_q4_1(data: np.ndarray[Any, Any], length: int) -> FourBit:
    blocks = data.reshape(len(data), length // 32, 20)
    return _four_bit(_nibbles(blocks[..., 4:]), _halves(blocks, 0), _halves(blocks, 2))


def _groups_q4_k(data: np.ndarray[Any, Any], length: int) -> FourBit:
    """Blocks of 256: two float16 factors, eight 6-bit scales and eight 6-bit minima in 12 bytes, then the numbers."""
    blocks = data.reshape(len(data), length // 256, 144)
    low, middle, high = (blocks[..., 4 + 4 * i : 8 + 4 * i] for i in range(3))
    scales = np.concatenate([low & 63, (high & 15) | (low >> 6 << 4)], axis=-1)
    minima = np.concatenate([middle & 63, (high >> 4) | (middle >> 6 << 4)], axis=-1)
    numbers = _nibbles(blocks[..., 16:].reshape(*blocks.shape[:2], 4, 32))
    scale = _halves(blocks, 0)[..., None] * scales
    minimum = -_halves(blocks, 2)[..., None] * minima
    return _four_bit(numbers, scale, minimum)
