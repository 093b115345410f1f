"""How masks learn: behind a few places of every text they guess what the target says further on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specchat.models.draft_heads.batch import Batch
from specchat.models.draft_heads.frozen_target import FrozenTarget
from specchat.models.draft_heads.losses import SHARPNESS, divergence, right
from specchat.models.draft_heads.mask_network import MaskNetwork
from specchat.models.draft_heads.unrolling import Acceptance, labels_at, logits_of

LEARNT_PLACES, MEASURED_PLACES = 24, 12
"""Places of every text behind which masks stand, in a step of learning and where progress is measured."""


@dataclass(frozen=True)
class MaskLearning:
    """Loss and acceptance of masks that run through a target which stays as it is.

    Args:
        sharpness: exponent of the target's probabilities in the labels.
    """

    target: FrozenTarget
    sharpness: float = SHARPNESS

    def loss(
        self, network: MaskNetwork, batch: Batch, columns: Tensor, steps: int, generator: torch.Generator
    ) -> tuple[Tensor, int]:
        """The mean over some places of the summed divergences of their masks, and how many places there are.

        Args:
            columns: (V,) the column of every token in the network's logits, −1 where it has none.
            steps: not asked: there are as many masks as there are.
        """
        del steps
        places, taken = _drawn(batch, LEARNT_PLACES, generator)
        states = self._states(network, batch, places)
        total = states.new_zeros(())
        for mask, going in enumerate(_going(batch, places, taken, network.sizes.masks)):
            rows, at = going.nonzero(as_tuple=True)
            logits = logits_of(network, states[rows, at, mask])
            labels = labels_at(batch, rows, places[rows, at] + mask + 1, columns, self.sharpness)
            total = total + divergence(logits, labels).sum()
        chains = int(taken.sum())
        return total / max(1, chains), chains

    @torch.no_grad()
    def acceptance(self, network: MaskNetwork, batch: Batch, columns: Tensor, steps: int) -> Acceptance:
        """How many guesses in a row are what the text says, behind some places; none are right beyond the last mask."""
        masks = network.sizes.masks
        places, taken = _drawn(batch, MEASURED_PLACES, torch.Generator().manual_seed(0))
        states = self._states(network, batch, places)
        lengths, still = torch.zeros_like(places), taken
        for mask, going in enumerate(_going(batch, places, taken, min(masks, steps))):
            wanted = columns[batch.tokens.gather(1, (places + mask + 2).clamp_max(batch.tokens.shape[1] - 1))]
            hit = right(network.logits(states[:, :, mask].flatten(0, 1)), wanted.flatten()).view_as(still)
            still = still & going & hit
            lengths += still
        return Acceptance.of(lengths[taken], steps)

    def _states(self, network: MaskNetwork, batch: Batch, places: Tensor) -> Tensor:
        masks = torch.stack(list(network.embeddings))
        return self.target.states(network.shared.embed(batch.tokens), places, masks, network.factors())


def _drawn(batch: Batch, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """(B, A) places from which something is drafted, drawn without replacement, and which of them are."""
    able = batch.drafted(1, max(1, batch.tokens.shape[1] - 1))
    scores = torch.rand(able.shape, generator=generator).to(able.device).masked_fill(~able, -1.0)
    best, places = scores.topk(min(count, able.shape[1]), dim=1)
    return places, best >= 0


def _going(batch: Batch, places: Tensor, taken: Tensor, masks: int) -> list[Tensor]:
    """For each mask (B, A) bool, where what it guesses is of the reply."""
    return [taken & (places + mask + 1 <= batch.last[:, None]) for mask in range(masks)]
