"""Weight sources made from another one: rounded to 4 bits, with paired rows side by side, or scaled."""

from __future__ import annotations

import torch
from torch import Tensor

from specchat.errors import DamagedModel
from specchat.models.weights.weight_source import (
    ALL_ROWS,
    GROUP,
    FourBit,
    RowChoice,
    StoredRows,
    TensorFacts,
    WeightSource,
)

_PAIRED = ("q", "k", "q_norm", "k_norm")
_AT_ONCE = 4096
"""Rows that are rounded at once: their float32 values take memory."""


class ForwardingSource:
    """Every method forwarded to another source; the classes below override what they change."""

    def __init__(self, source: WeightSource) -> None:
        self._source = source

    @property
    def interleaved(self) -> bool:
        return self._source.interleaved

    @property
    def rounds(self) -> bool:
        return self._source.rounds

    def stored(self, name: str, layer: int | None = None) -> StoredRows | None:
        return self._source.stored(name, layer)

    def dense(self, name: str, layer: int | None = None, part: str = "weight", rows: RowChoice = ALL_ROWS) -> Tensor:
        return self._source.dense(name, layer, part, rows)

    def outputs(self, name: str, layer: int | None = None) -> int:
        return self._source.outputs(name, layer)

    def has(self, name: str, layer: int | None = None, part: str = "weight") -> bool:
        return self._source.has(name, layer, part)

    def about(self, name: str, layer: int | None = None, part: str = "weight") -> TensorFacts:
        return self._source.about(name, layer, part)

    def four_bit(self, name: str, layer: int | None = None) -> FourBit | None:
        return self._source.four_bit(name, layer)

    def embed(self, ids: list[int]) -> Tensor:
        return self._source.embed(ids)

    def let_go(self) -> None:
        self._source.let_go()


class RoundedSource(ForwardingSource):
    """A source that has every weight in 4 bits, rounded where the file has more: for a model that only guesses."""

    @property
    def rounds(self) -> bool:
        return True

    def four_bit(self, name: str, layer: int | None = None) -> FourBit | None:
        own, out = super().four_bit(name, layer), self.outputs(name, layer)
        if own is not None:
            return own
        parts = (self.dense(name, layer, rows=slice(at, min(out, at + _AT_ONCE))) for at in range(0, out, _AT_ONCE))
        rounded = [FourBit.rounded(part) for part in parts if part.shape[1] % GROUP == 0]
        return FourBit.joined(rounded) if rounded else None


class PairedSource(ForwardingSource):
    """A source whose query and key rows that rotate together lie side by side, whatever the file's order."""

    def __init__(self, source: WeightSource, head_dim: int) -> None:
        super().__init__(source)
        self._head_dim = head_dim
        self._as_it_is = source.interleaved

    @property
    def interleaved(self) -> bool:
        return True

    def stored(self, name: str, layer: int | None = None) -> StoredRows | None:
        stored = super().stored(name, layer)
        if stored is None or self._as_it_is or name not in _PAIRED:
            return stored
        return stored.permuted(self._order(stored.rows))

    def dense(self, name: str, layer: int | None = None, part: str = "weight", rows: RowChoice = ALL_ROWS) -> Tensor:
        if self._as_it_is or name not in _PAIRED:
            return super().dense(name, layer, part, rows)
        weight = super().dense(name, layer, part)
        return weight[self._order(len(weight))[rows]]

    def four_bit(self, name: str, layer: int | None = None) -> FourBit | None:
        group = super().four_bit(name, layer)
        if group is None or self._as_it_is or name not in _PAIRED:
            return group
        return group.permuted(self._order(len(group.numbers)))

    def _order(self, rows: int) -> Tensor:
        if rows % self._head_dim:
            raise DamagedModel(f"{rows} rows of queries or keys are not whole heads of {self._head_dim}")
        return paired_rows(rows, self._head_dim)


class ScaledSource(ForwardingSource):
    """A source whose embeddings and whose norms of queries are multiplied by a family's factors.

    The embedding as the head's weight stays as it is. Scaling the norm scales every query, before it is rotated.
    """

    def __init__(self, source: WeightSource, embedding_scale: float, query_scale: float) -> None:
        super().__init__(source)
        self._embedding_scale = embedding_scale
        self._query_scale = query_scale

    def dense(self, name: str, layer: int | None = None, part: str = "weight", rows: RowChoice = ALL_ROWS) -> Tensor:
        values = super().dense(name, layer, part, rows)
        return values * self._query_scale if name == "q_norm" else values

    def embed(self, ids: list[int]) -> Tensor:
        return super().embed(ids) * self._embedding_scale


def paired_rows(rows: int, head_dim: int) -> Tensor:
    """(rows,) where each row of q or k stood before those that rotate together were put side by side.

    Halves become pairs: value i of a head rotates with value i + head_dim / 2.
    """
    order = torch.arange(head_dim).view(2, head_dim // 2).t().flatten()
    return (torch.arange(rows // head_dim)[:, None] * head_dim + order).flatten()
