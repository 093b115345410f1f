"""Sources of a decoder's weights: one set of names for all file formats, and sources derived from others.

A derived source rounds weights to 4 bits, puts rows that rotate together side by side, or scales.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specchat.errors import DamagedModel
from specchat.models.weights.families import LLAMA, Family
from specchat.models.weights.foreign_code import one_line
from specchat.models.weights.gguf_header import Kind
from specchat.models.weights.safetensors_header import tensors_in, weight_files

_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


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
        return replace(self, data=self.data[rows]) if self.order is None else replace(self, order=self.order[rows])

    def copied(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """(rows, bytes per row), a copy in the rows' order."""
        return np.array(self.data) if self.order is None else self.data[self.order]

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


class WeightSource:
    """Weights by our own names: `embed`, `head`, `norm`, and per layer `q`, `k`, `v`, `o`, `gate`, `up`, `down`, …"""

    interleaved = False
    """Whether rows of q and k that rotate together already lie side by side."""

    rounds = False
    """Whether weights may be taken in 4 bits where the source has more."""

    def stored(self, name: str, layer: int | None = None) -> StoredRows | None:
        """A weight as it lies, or None where it must be asked for in float32."""
        raise NotImplementedError

    def dense(self, name: str, layer: int | None = None, part: str = "weight", rows: RowChoice = ALL_ROWS) -> Tensor:
        """A weight in float32, or some of its rows."""
        raise NotImplementedError

    def about(self, name: str, layer: int | None = None, part: str = "weight") -> TensorFacts:
        """Facts about a tensor, also about one that is missing."""
        raise NotImplementedError

    def outputs(self, name: str, layer: int | None = None) -> int:
        sizes = self.about(name, layer).sizes
        assert sizes is not None, f"{name} is missing"
        return sizes[0]

    def has(self, name: str, layer: int | None = None, part: str = "weight") -> bool:
        return self.about(name, layer, part).sizes is not None

    def four_bit(self, name: str, layer: int | None = None) -> FourBit | None:
        """The weight in 4 bits, unpacked, where the source has it so."""
        return None

    def embed(self, ids: list[int]) -> Tensor:
        """(n, d) float32 rows of the embedding."""
        return self.dense("embed", rows=ids)

    def let_go(self) -> None:
        """Give back memory that what was read so far takes; it can be read again."""


def head_rows(source: WeightSource, tied: bool, tokens: Sequence[int]) -> Tensor:
    """(n, d) float32 rows of the head for these tokens, with the final norm's factors in them."""
    return source.dense("embed" if tied else "head", rows=list(tokens)) * source.dense("norm")


_PAIRED = ("q", "k", "q_norm", "k_norm")
_AT_ONCE = 4096
"""Rows that are rounded at once: their float32 values take memory."""


class AdjustedSource(WeightSource):
    """Another source, its weights arranged, scaled or rounded for a network.

    Args:
        head_dim: query and key rows that rotate together are put side by side, in heads of this size, whatever the
            file's order; 0 leaves them as they lie.
        embedding_scale: a family's factor on embeddings; the embedding as the head's weight stays as it is.
        query_scale: a factor on the norm of queries, which scales every query before it is rotated.
        rounds: every weight is had in 4 bits, rounded where the file has more: for a model that only guesses.
    """

    def __init__(
        self,
        source: WeightSource,
        *,
        head_dim: int = 0,
        embedding_scale: float = 1.0,
        query_scale: float = 1.0,
        rounds: bool = False,
    ) -> None:
        self._source = source
        self._head_dim = 0 if source.interleaved else head_dim
        self._embedding_scale, self._query_scale = embedding_scale, query_scale
        self._rounded = rounds
        self.interleaved = source.interleaved or head_dim > 0
        self.rounds = source.rounds or rounds

    def stored(self, name: str, layer: int | None = None) -> StoredRows | None:
        stored = self._source.stored(name, layer)
        return stored if stored is None or not self._moves(name) else stored.permuted(self._order(stored.rows))

    def dense(self, name: str, layer: int | None = None, part: str = "weight", rows: RowChoice = ALL_ROWS) -> Tensor:
        if self._moves(name):
            weight = self._source.dense(name, layer, part)
            values = weight[self._order(len(weight))[rows]]
        else:
            values = self._source.dense(name, layer, part, rows)
        return values * self._query_scale if name == "q_norm" and self._query_scale != 1 else values

    def about(self, name: str, layer: int | None = None, part: str = "weight") -> TensorFacts:
        return self._source.about(name, layer, part)

    def four_bit(self, name: str, layer: int | None = None) -> FourBit | None:
        own = self._source.four_bit(name, layer)
        if own is not None:
            return own.permuted(self._order(len(own.numbers))) if self._moves(name) else own
        if not self._rounded:
            return None
        out = self.outputs(name, layer)
        parts = (self.dense(name, layer, rows=slice(at, min(out, at + _AT_ONCE))) for at in range(0, out, _AT_ONCE))
        rounded = [FourBit.rounded(part) for part in parts if part.shape[1] % GROUP == 0]
        return FourBit.joined(rounded) if rounded else None

    def embed(self, ids: list[int]) -> Tensor:
        rows = self._source.embed(ids)
        return rows * self._embedding_scale if self._embedding_scale != 1 else rows

    def let_go(self) -> None:
        self._source.let_go()

    def _moves(self, name: str) -> bool:
        """Whether this weight's rows change their places."""
        return self._head_dim > 0 and name in _PAIRED

    def _order(self, rows: int) -> Tensor:
        if rows % self._head_dim:
            raise DamagedModel(f"{rows} rows of queries or keys are not whole heads of {self._head_dim}")
        return paired_rows(rows, self._head_dim)


def paired_rows(rows: int, head_dim: int) -> Tensor:
    """(rows,) where each row of q or k stood before those that rotate together were put side by side.

    Halves become pairs: value i of a head rotates with value i + head_dim / 2.
    """
    order = torch.arange(head_dim).view(2, head_dim // 2).t().flatten()
    return (torch.arange(rows // head_dim)[:, None] * head_dim + order).flatten()


class TensorSource(WeightSource):
    """Weights as transformers names them: a folder of safetensors, or a network's own state."""

    def __init__(self, tensors: Mapping[str, Any], family: Family = LLAMA, place: str = "the network") -> None:
        """Tensors by their names; `place` says where they are from, for errors."""
        self._tensors = tensors
        self._family = family
        self._place = place

    @classmethod
    def of_folder(cls, folder: Path, family: Family = LLAMA) -> TensorSource:
        """The weights of a folder of safetensors; WeightsError if a file is damaged, or contradicts an index."""
        from safetensors.torch import load_file

        tensors_in(folder)
        tensors: dict[str, Tensor] = {}
        for file in weight_files(folder):
            with one_line(f"{file} cannot be read"):
                tensors |= load_file(file)
        return cls(tensors, family, str(folder))

    def stored(self, name: str, layer: int | None = None) -> StoredRows | None:
        return StoredRows.of_tensor(self._tensors[self._name(name, layer, "weight")])

    def dense(self, name: str, layer: int | None = None, part: str = "weight", rows: RowChoice = ALL_ROWS) -> Tensor:
        tensor: Tensor = self._tensors[self._name(name, layer, part)]
        values = tensor[rows].detach().float()
        return values + self._family.norm_offset if name.endswith("norm") else values

    def about(self, name: str, layer: int | None = None, part: str = "weight") -> TensorFacts:
        if name not in self._family.hub_names:
            return TensorFacts(f"{self._place}: {name}", None)
        stored = self._name(name, layer, part)
        label = f"{self._place}: tensor {stored}"
        if stored not in self._tensors:
            return TensorFacts(label, None)
        tensor = self._tensors[stored]
        return TensorFacts(label, tuple(tensor.shape), "" if tensor.dtype in _FLOATS else str(tensor.dtype))

    def _name(self, name: str, layer: int | None, part: str) -> str:
        where = "" if layer is None else f"model.layers.{layer}."
        return f"{where}{self._family.hub_names[name]}.{part}"
