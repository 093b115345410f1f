"""Networks made narrower: which heads and channels matter most, and the protocol of targets that can drop others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from specchat.core.memory import NetworkMemory
from specchat.core.seams import Model


@dataclass(frozen=True)
class Ranking:
    """The heads and the MLP channels of every layer, those that matter most first.

    Args:
        heads: (layers, heads) int32, every row a permutation.
        channels: (layers, inner) int32, likewise.
    """

    heads: Tensor
    channels: Tensor

    @classmethod
    def of(cls, heads: Tensor, channels: Tensor) -> Ranking:
        """From how much each of them matters: (layers, heads) and (layers, inner) numbers."""
        orders = (values.argsort(dim=-1, descending=True, stable=True) for values in (heads, channels))
        return cls(*(order.to(torch.int32) for order in orders))

    def fits(self, layers: int, heads: int, channels: int) -> bool:
        """Whether it ranks the units of a network of these sizes."""
        wanted = ((self.heads, heads), (self.channels, channels))
        return all(
            ranked.shape == (layers, count) and bool((ranked.sort(dim=-1).values == torch.arange(count)).all())
            for ranked, count in wanted
        )


class Prunable(Protocol):
    """A target of whose weights a narrower network can be made. They are read from its file again."""

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Layers, heads and MLP channels."""

    def by_magnitude(self) -> Ranking:
        """Heads and channels by the size of their weights."""

    def by_taylor(self, texts: Sequence[Sequence[int]]) -> Iterator[Ranking | None]:
        """Heads and channels by what the loss on these texts, all of one length, would lose without them, to first
        order. Yields None after every piece of work, then the ranking."""

    def pruned(self, ranking: Ranking, ratio: float) -> Model:
        """A model without this share of the heads and channels, those that matter least. It takes texts as long as the
        target does now."""

    def memory(self, ratio: float, texts: int, tokens: int) -> NetworkMemory:
        """What such a model will take, ranked by so many texts of so many tokens."""
