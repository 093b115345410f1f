"""A network unrolled along texts: the loss of a chain of its own guesses, and how many of them the target accepts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from specchat.models.draft_heads.batch import Batch
from specchat.models.draft_heads.glancing import glanced_states
from specchat.models.draft_heads.losses import (
    SHARPNESS,
    Labels,
    divergence,
    followed,
    labels_of,
    right,
    state_distance,
)
from specchat.models.draft_heads.networks import LearnedNetwork

STATE_SHARE = 4.0
"""What the distance between states counts beside the distance between laws, in nats; measured in
docs/measurements.md."""


@dataclass(frozen=True)
class Acceptance:
    """How far chains of guesses are right.

    Args:
        right: for each depth, how many chains were right that far.
        chains: how many there were.
    """

    right: tuple[int, ...]
    chains: int

    @classmethod
    def of(cls, lengths: Tensor, steps: int) -> Acceptance:
        """What chains of so many steps come to, of which so many guesses each were right: (n,)."""
        return cls(tuple(int((lengths >= step).sum()) for step in range(1, steps + 1)), len(lengths))

    @property
    def by_depth(self) -> tuple[float, ...]:
        """The share that was right at each depth, of those that were right so far."""
        before = (self.chains, *self.right)
        return tuple(now / max(1, last) for last, now in zip(before, self.right, strict=False))

    @property
    def tau(self) -> float:
        """Mean tokens emitted per round of a chain of so many nodes, the bonus included."""
        return 1.0 + sum(self.right) / max(1, self.chains)

    def plus(self, other: Acceptance) -> Acceptance:
        if not self.right:
            return other
        return Acceptance(
            tuple(a + b for a, b in zip(self.right, other.right, strict=True)), self.chains + other.chains
        )


class HasLogits(Protocol):
    """What has a head."""

    def logits(self, states: Tensor) -> Tensor:
        """(…, H) logits of the token that follows, for each of the shared tokens."""


def chain_loss(
    network: Any,
    batch: Batch,
    columns: Tensor,
    steps: int,
    generator: torch.Generator,
    glancing: float = 0.0,
    sharpness: float = SHARPNESS,
) -> tuple[Tensor, int]:
    """The mean loss over the first guesses of all chains, that of deeper ones added, and how many chains there are.

    A guess's loss is how far its law is from the target's and, where the batch has the target's states, how far its
    state is from the target's last one: few texts teach more by their states than by their likeliest tokens alone.

    Reference for the second part: Li et al., EAGLE, arXiv:2401.15077.

    Args:
        network: a `LearnedNetwork`.
        columns: (V,) the column of every token in the network's logits, −1 where it has none.
        glancing: above 0, a `GlancingNetwork` is shown so much of what it misses; see `glanced_states`.
        sharpness: exponent of the target's probabilities in the labels.
    """
    fused = _fused(network, batch)
    states = (
        glanced_states(network, fused, batch, columns, steps, glancing, generator)
        if glancing
        else network.states(fused, batch.tokens, steps)
    )
    anchors = states[0].shape[1]
    going = batch.drafted(1, anchors)
    chains = int(going.sum())
    total = states[0].new_zeros(())
    for step, state in enumerate(states, 1):
        going = going & batch.drafted(step, anchors)
        rows, places = going.nonzero(as_tuple=True)
        if not len(rows):
            break
        guessed, at = state[rows, places], places + step
        logits, labels = logits_of(network, guessed), labels_at(batch, rows, at, columns, sharpness)
        total = total + divergence(logits, labels).sum()
        if batch.features.dim() == 4:
            last, normed = batch.features[rows, at, -1], network.normed(guessed)
            total = total + STATE_SHARE * state_distance(normed, last, network.sizes.epsilon).sum()
        chance = torch.rand(len(rows), generator=generator).to(logits.device)
        going = going.index_put((rows, places), followed(logits.detach(), columns[batch.tokens[rows, at + 1]], chance))
    return total / max(1, chains), chains


def logits_of(network: HasLogits, states: Tensor) -> Tensor:
    """(n, H) logits after (n, d) states, in float32 at least: the sum of bfloat16 numbers may exceed 1."""
    logits = network.logits(states)
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def labels_at(batch: Batch, rows: Tensor, places: Tensor, columns: Tensor, sharpness: float = 1.0) -> Labels:
    """What the target says at some places: (n,) numbers of texts, (n,) of places in them; `columns` as above."""
    at = rows, places
    return labels_of(batch.likeliest[at], batch.log_p[at], batch.rest[at], columns, sharpness)


def acceptance(network: LearnedNetwork, batch: Batch, columns: Tensor, steps: int) -> Acceptance:
    """How many chains of guesses are what the text says, depth by depth. Chains cut off by the end count as wrong."""
    return Acceptance.of(accepted_lengths(network, batch, columns, steps), steps)


@torch.no_grad()
def accepted_lengths(network: LearnedNetwork, batch: Batch, columns: Tensor, steps: int) -> Tensor:
    """(n,) int64, for each place from which something is drafted, how many guesses of its chain are right."""
    states = network.states(_fused(network, batch), batch.tokens, steps)
    going = begun = batch.drafted(1, states[0].shape[1])
    lengths = torch.zeros_like(begun, dtype=torch.int64)
    for step, state in enumerate(states, 1):
        rows, places = (going & batch.drafted(step, going.shape[1])).nonzero(as_tuple=True)
        going = torch.zeros_like(going)
        if len(rows):
            wanted = columns[batch.tokens[rows, places + step + 1]]
            going[rows, places] = right(network.logits(state[rows, places]), wanted)
        lengths += going
    return lengths[begun]


def _fused(network: LearnedNetwork, batch: Batch) -> Tensor:
    return network.fused(batch.features) if batch.features.dim() == 4 else batch.features
