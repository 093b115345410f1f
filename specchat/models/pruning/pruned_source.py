"""A weight source without some heads and channels."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from specchat.core.drafting_networks import Ranking
from specchat.models.base.shape import Shape
from specchat.models.weights.weight_source import (
    ALL_ROWS,
    ForwardingSource,
    FourBit,
    RowChoice,
    StoredRows,
    TensorFacts,
    WeightSource,
)

_CHANNELS_TOGETHER = 32
"""The number of channels that is kept is a multiple of this: kernels take so many together."""

_ROWS, _COLUMNS = {"q", "k", "v", "gate", "up"}, {"o", "down"}


@dataclass(frozen=True)
class KeptUnits:
    """What is left of every layer, the same number in each.

    Args:
        heads: (layers, h) int64, heads of queries, ascending.
        kv_heads: (layers, k) int64, heads of keys and values, ascending.
        channels: (layers, c) int64, channels of the MLP, ascending.
    """

    heads: Tensor
    kv_heads: Tensor
    channels: Tensor

    @classmethod
    def of(cls, ranking: Ranking, shape: Shape, ratio: float) -> KeptUnits:
        """All but this share of the heads and channels, those that matter most.

        Where several heads share keys and values, each such group loses as many heads and keeps its keys and values.
        """
        group = shape.heads // shape.kv_heads
        groups = shape.kv_heads if group > 1 else 1
        size = shape.heads // groups
        places = ranking.heads.long()
        order = places.argsort(dim=-1).view(shape.layers, groups, size).argsort(dim=-1)  # best first, in each group
        kept = order[:, :, : max(1, round((1.0 - ratio) * size))].sort(dim=-1).values
        heads = (kept + size * torch.arange(groups)[:, None]).flatten(1)
        kv_heads = torch.arange(shape.kv_heads).expand(shape.layers, -1) if group > 1 else heads
        wanted = _CHANNELS_TOGETHER * round((1.0 - ratio) * shape.inner / _CHANNELS_TOGETHER)
        count = min(shape.inner, max(_CHANNELS_TOGETHER, wanted))
        return cls(heads, kv_heads, ranking.channels[:, :count].long().sort(dim=-1).values)

    def shape(self, whole: Shape) -> Shape:
        """That of the network that is left."""
        return dataclasses.replace(
            whole, heads=self.heads.shape[1], kv_heads=self.kv_heads.shape[1], inner=self.channels.shape[1]
        )


class PrunedSource(ForwardingSource):
    """The rows and columns of the heads and channels that are kept; everything else as it is."""

    def __init__(self, source: WeightSource, kept: KeptUnits, head_dim: int) -> None:
        super().__init__(source)
        self._kept = kept
        self._head_dim = head_dim

    def stored(self, name: str, layer: int | None = None) -> StoredRows | None:
        return super().stored(name, layer) if layer is None or self._places(name, layer) is None else None

    def four_bit(self, name: str, layer: int | None = None) -> FourBit | None:
        return super().four_bit(name, layer) if layer is None or self._places(name, layer) is None else None

    def dense(self, name: str, layer: int | None = None, part: str = "weight", rows: RowChoice = ALL_ROWS) -> Tensor:
        places = None if layer is None else self._places(name, layer)
        if places is None:
            return super().dense(name, layer, part, rows)
        if name in _ROWS:
            return super().dense(name, layer, part)[places[rows]]
        values = super().dense(name, layer, part, rows)
        return values[:, places] if part == "weight" else values

    def about(self, name: str, layer: int | None = None, part: str = "weight") -> TensorFacts:
        facts = super().about(name, layer, part)
        places = None if layer is None else self._places(name, layer)
        if places is None or facts.sizes is None or (name in _COLUMNS and part != "weight"):
            return facts
        rest, last = (facts.sizes[1:], facts.sizes[:-1])
        return dataclasses.replace(facts, sizes=(len(places), *rest) if name in _ROWS else (*last, len(places)))

    def _places(self, name: str, layer: int) -> Tensor | None:
        """Which rows or columns of a layer's weight are kept; None where all are."""
        match name:
            case "q" | "o":
                return self._of_heads(self._kept.heads[layer])
            case "k" | "v":
                return self._of_heads(self._kept.kv_heads[layer])
            case "gate" | "up" | "down":
                return self._kept.channels[layer]
        return None

    def _of_heads(self, heads: Tensor) -> Tensor:
        return (heads[:, None] * self._head_dim + torch.arange(self._head_dim)).flatten()
