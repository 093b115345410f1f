"""A target's file, from which narrower networks are made; the file is only read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from specchat.core.drafting_networks import Ranking
from specchat.core.memory import NetworkMemory
from specchat.core.seams import Model
from specchat.models.base.network import Network
from specchat.models.base.prepared_source import prepared
from specchat.models.base.shape import Shape
from specchat.models.decoder.decoder import Decoder
from specchat.models.pruning.memory import first_units, making_bytes, ranking_bytes, weights_of
from specchat.models.pruning.pruned_source import KeptUnits, PrunedSource
from specchat.models.pruning.taylor import magnitude_ranking, taylor_ranking
from specchat.models.weights.weight_source import WeightSource


@dataclass(frozen=True)
class PrunableFile:
    """A `Prunable` of our own decoder.

    Args:
        target: the decoder that runs the file's weights.
        opened: opens the file's weights, and says their shape. None of them stay in memory after they were asked for.
        network: makes a network of a shape and its weights, as the target's was made.
    """

    target: Decoder
    opened: Callable[[], tuple[WeightSource, Shape]]
    network: Callable[[Shape, WeightSource], Network]

    @property
    def whole(self) -> Shape:
        """The target's."""
        return self.target.network.shape

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Layers, heads and MLP channels."""
        return self.whole.layers, self.whole.heads, self.whole.inner

    def by_magnitude(self) -> Ranking:
        """Heads and channels by the size of their weights."""
        return magnitude_ranking(self.whole, self.prepared())

    def by_taylor(self, texts: Sequence[Sequence[int]]) -> Iterator[Ranking | None]:
        """Heads and channels by what the loss on these texts, all of one length, would lose with them."""
        return taylor_ranking(self.whole, self.prepared(), torch.tensor([list(text) for text in texts]))

    def pruned(self, ranking: Ranking, ratio: float) -> Model:
        """A model without this share of the heads and channels."""
        kept = KeptUnits.of(ranking, self.whole, ratio)
        source = PrunedSource(self.opened()[0], kept, self.whole.head_dim)
        return Decoder(self.network(kept.shape(self.whole), source), self.target.context_tokens, drafts=True)

    def memory(self, ratio: float, texts: int, tokens: int) -> NetworkMemory:
        """What such a model takes: as many bytes for each weight as the target, which may have some in more bits."""
        whole, network = self.whole, self.target.network
        kept = KeptUnits.of(first_units(whole), whole, ratio).shape(whole)
        keeps_table = network.kernels != "native"  # which reads embeddings from the file
        weights_bytes = round(network.nbytes * weights_of(kept, keeps_table) / weights_of(whole, keeps_table))
        working = max(making_bytes(whole, network.threads), ranking_bytes(whole, texts, tokens))
        return NetworkMemory(self._stand_in, weights_bytes, working)

    @cached_property
    def _stand_in(self) -> Decoder:
        return self.target.with_new_cache()

    def prepared(self) -> WeightSource:
        """The file's weights as a decoder's layers take them."""
        return prepared(self.opened()[0], self.whole)
