"""Glancing: a network that guesses blocks is shown some of the truth that its first guesses missed."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from specchat.models.draft_heads.batch import Batch
from specchat.models.draft_heads.losses import right
from specchat.models.draft_heads.networks import LearnedNetwork


class GlancingNetwork(LearnedNetwork, Protocol):
    """A network whose passes each guess a block of tokens."""

    def glanced(self, fused: Tensor, tokens: Tensor, steps: int, shown: Tensor) -> list[Tensor]:
        """(B, S − steps, d) for each step, as `states`; where (B, S − steps, k) `shown` says so, an entry of a place's
        first block is replaced by the entry k further on: its state and its token are what the block guesses."""

    @property
    def block(self) -> int:
        """k, so many tokens are guessed in a pass."""


def glanced_states(
    network: GlancingNetwork,
    fused: Tensor,
    batch: Batch,
    columns: Tensor,
    steps: int,
    share: float,
    generator: torch.Generator,
) -> list[Tensor]:
    """What `network.states` says once it has been shown the truth in some places.

    The network first guesses the block that follows every place. Of each text so many tokens are shown as `share` of
    the guesses that were wrong, in runs that begin with a block's first entry and leave its last one: what is shown
    is the true state and the true token that an entry was to guess. So the network learns how the tokens of a block
    depend on each other, first with much help and at the end, where `share` is 0, with none.

    Reference: Gao et al., Falcon, arXiv:2412.12639, Coupled Sequential Glancing Distillation; after Qian et al.,
    Glancing Transformer, arXiv:2008.07905. Differs: a block ends at every place of a text, and each block that is
    shown something sees it alone.

    Args:
        columns: (V,) the column of every token in the network's logits, −1 where it has none.
    """
    anchors = batch.tokens.shape[1] - steps
    with torch.no_grad():
        first = network.states(fused, batch.tokens, network.block)
        wrong = torch.zeros(len(fused), dtype=torch.int64)
        for step, states in enumerate(first, 1):
            rows, places = batch.drafted(step, anchors).nonzero(as_tuple=True)
            wanted = columns[batch.tokens[rows, places + step + 1]]
            missed = ~right(network.logits(states[rows, places]), wanted)
            wrong += torch.bincount(rows[missed], minlength=len(wrong)).cpu()
    counts = (share * wrong).long()
    shown = shown_entries(batch.drafted(1, anchors).cpu(), counts, network.block, generator)
    return network.glanced(fused, batch.tokens, steps, shown.to(fused.device))


def shown_entries(places: Tensor, counts: Tensor, block: int, generator: torch.Generator) -> Tensor:
    """(B, A, k) bool, which entries of each place's first block are to be shown: `counts` of each text, at random.

    Args:
        places: (B, A) bool, where something is drafted.
        counts: (B,) int64.
    """
    shown = torch.zeros(*places.shape, block, dtype=torch.bool)
    for row, (where, count) in enumerate(zip(places, counts.tolist(), strict=True)):
        some = where.nonzero()[:, 0]
        some = some[torch.randperm(len(some), generator=generator)]
        runs = torch.randint(1, block, (len(some),), generator=generator)
        runs = (count - (runs.cumsum(0) - runs)).clamp_min(0).minimum(runs)
        shown[row, some] = torch.arange(block) < runs[:, None]
    return shown
