"""Shares of a decoder: which heads, MLP channels and vocabulary rows each rank holds, and a source with these alone."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from specchat.errors import UsageError
from specchat.models.decoder.pruning import KeptUnits, PrunedSource
from specchat.models.decoder.shape import Shape
from specchat.models.weights.weight_source import (
    ALL_ROWS,
    GROUP,
    FourBit,
    RowChoice,
    StoredRows,
    TensorFacts,
    WeightSource,
)

_TABLES = ("embed", "head")
_ROWS = ("q", "k", "v", "gate", "up")
_COLUMNS = ("o", "down")


@dataclass(frozen=True)
class Share:
    """One rank's part of every layer, and of the rows of embedding and head.

    Args:
        kv_heads: heads of keys and values, with all heads of queries that read them.
    """

    rank: int
    kv_heads: range
    channels: range
    vocab: range

    def heads(self, shape: Shape) -> range:
        """The heads of queries."""
        group = shape.heads // shape.kv_heads
        return range(self.kv_heads.start * group, self.kv_heads.stop * group)

    def shape(self, whole: Shape) -> Shape:
        """The shape of a network that has only this share."""
        return dataclasses.replace(
            whole,
            heads=len(self.heads(whole)),
            kv_heads=len(self.kv_heads),
            inner=len(self.channels),
            vocab_size=len(self.vocab),
        )

    def units(self, name: str, whole: Shape) -> slice:
        """The rows of q, k, v, gate and up, or columns of o and down, that belong to it."""
        if name in ("gate", "up", "down"):
            return slice(self.channels.start, self.channels.stop)
        heads = self.heads(whole) if name in ("q", "o") else self.kv_heads
        return slice(heads.start * whole.head_dim, heads.stop * whole.head_dim)


def shares_of(shape: Shape, ranks: int) -> tuple[Share, ...]:
    """A share for each rank: whole heads, and so many channels that all shares have about the same number of weights.

    Raises:
        UsageError: there are too few heads of keys and values; says how many ranks can share them.
    """
    channels_together = GROUP if shape.inner % GROUP == 0 and shape.inner // GROUP >= ranks else 1
    pieces = shape.inner // channels_together
    most = min(shape.kv_heads, pieces, shape.vocab_size)
    if ranks > most:
        raise UsageError(
            f"{ranks} ranks cannot share {shape.kv_heads} heads of keys and values; nearest that works: {most}"
        )
    kv = _even(shape.kv_heads, ranks)
    of_head = 2 * (shape.heads // shape.kv_heads + 1) * shape.head_dim  # rows and columns, of `hidden` weights each
    of_piece = 3 * channels_together
    each = (shape.kv_heads * of_head + pieces * of_piece) / ranks
    until = [round((each * (rank + 1) - kv[rank].stop * of_head) / of_piece) for rank in range(ranks - 1)]
    ends = [0]
    for rank, end in enumerate([*until, pieces]):
        ends.append(max(ends[-1] + 1, min(end, pieces - (ranks - 1 - rank))))
    channels = [range(first * channels_together, last * channels_together) for first, last in pairwise(ends)]
    vocab = _even(shape.vocab_size, ranks)
    return tuple(Share(rank, kv[rank], channels[rank], vocab[rank]) for rank in range(ranks))


def _even(count: int, parts: int) -> list[range]:
    """Numbers below `count` in runs whose lengths differ by one at most, the longer ones first."""
    sizes = [count // parts + (part < count % parts) for part in range(parts)]
    return [range(first, last) for first, last in pairwise(accumulate(sizes, initial=0))]


class ShardSource(PrunedSource):
    """The weights of one share. What every rank adds to the sum of all, such as a bias of o, the first alone has."""

    def __init__(self, source: WeightSource, share: Share, whole: Shape) -> None:
        def in_all_layers(units: range) -> Tensor:
            return torch.arange(units.start, units.stop).expand(whole.layers, -1)

        units = share.heads(whole), share.kv_heads, share.channels
        super().__init__(source, KeptUnits(*map(in_all_layers, units)), whole)
        self._share, self._whole = share, whole

    def stored(self, name: str, layer: int | None = None) -> StoredRows | None:
        stored = super().stored(name, layer)
        return stored.some(self._vocab) if stored is not None and name in _TABLES else stored

    def four_bit(self, name: str, layer: int | None = None) -> FourBit | None:
        weight = self._source.four_bit(name, layer)
        if weight is None:
            return None
        if name in _COLUMNS:
            columns = self._share.units(name, self._whole)
            if columns.start % GROUP or columns.stop % GROUP:
                return None
            groups = slice(columns.start // GROUP, columns.stop // GROUP)
            parts = weight.numbers[:, columns], weight.scale[:, groups], weight.minimum[:, groups]
        else:
            rows = self._vocab if name in _TABLES else self._share.units(name, self._whole)
            parts = weight.numbers[rows], weight.scale[rows], weight.minimum[rows]
        return FourBit(*(part.contiguous() for part in parts))

    def dense(self, name: str, layer: int | None = None, part: str = "weight", rows: RowChoice = ALL_ROWS) -> Tensor:
        if name in _TABLES:
            return super().dense(name, layer, part, self._vocab)[rows]
        values = super().dense(name, layer, part, rows)
        return torch.zeros_like(values) if self._share.rank and name in _COLUMNS and part == "bias" else values

    def about(self, name: str, layer: int | None = None, part: str = "weight") -> TensorFacts:
        facts = super().about(name, layer, part)
        if name not in _TABLES or facts.sizes is None:
            return facts
        return dataclasses.replace(facts, sizes=(len(self._share.vocab), *facts.sizes[1:]))

    def embed(self, ids: list[int]) -> Tensor:
        first = self._share.vocab.start
        return self._source.embed([first + id for id in ids])

    @property
    def _vocab(self) -> slice:
        return slice(self._share.vocab.start, self._share.vocab.stop)
