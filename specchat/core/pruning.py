"""Which heads and channels of a network matter most, as lists of their numbers; a few kilobytes for each layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


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
