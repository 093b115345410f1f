"""A target's file, from which narrower networks are made; the file is only read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from specchat.core.network_pruning import Ranking
from specchat.core.seams import Model
from specchat.models.base.network import Network
from specchat.models.base.prepared_source import prepared
from specchat.models.base.shape import Shape
from specchat.models.files.weight_source import WeightSource
from specchat.models.own.decoder import Decoder
from specchat.models.pruning.pruned_source import KeptUnits, PrunedSource
from specchat.models.pruning.taylor import magnitude_ranking, taylor_ranking


@dataclass(frozen=True)
class PrunableFile:
    """A `Prunable` of our own decoder.

    Args:
        opened: opens the file's weights, and says their shape. None of them stay in memory after they were asked for.
        network: makes a network of a shape and its weights, as the target's was made.
    """

    whole: Shape
    context_tokens: int
    opened: Callable[[], tuple[WeightSource, Shape]]
    network: Callable[[Shape, WeightSource], Network]

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Layers, heads and MLP channels."""
        return self.whole.layers, self.whole.heads, self.whole.inner

    def by_magnitude(self) -> Ranking:
        """Heads and channels by the size of their weights."""
        return magnitude_ranking(self.whole, self._prepared())

    def by_taylor(self, texts: Sequence[Sequence[int]]) -> Iterator[Ranking | None]:
        """Heads and channels by what the loss on these texts, all of one length, would lose with them."""
        return taylor_ranking(self.whole, self._prepared(), torch.tensor([list(text) for text in texts]))

    def pruned(self, ranking: Ranking, ratio: float) -> Model:
        """A model without this share of the heads and channels."""
        kept = KeptUnits.of(ranking, self.whole, ratio)
        source = PrunedSource(self.opened()[0], kept, self.whole.head_dim)
        return Decoder(self.network(kept.shape(self.whole), source), self.context_tokens, drafts=True)

    def _prepared(self) -> WeightSource:
        return prepared(self.opened()[0], self.whole)
