"""Masks learn through a target that stays as it is: behind places of every text they guess what it says further on."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from specchat.core.request import Entry
from specchat.models.decoder.adapters import PRODUCTS, Factors, paired
from specchat.models.decoder.differentiable_layer import NO_FACTORS, DifferentiableLayer, mixed_values, seen_along
from specchat.models.decoder.shape import Shape
from specchat.models.draft_heads.head import Batch
from specchat.models.draft_heads.masks import PromptTokens
from specchat.models.weights.weight_source import WeightSource
from specchat.training.losses import SHARPNESS, Acceptance, divergence, labels_at, logits_of, right

_NORMS = ("input_norm", "post_attention_norm", "mlp_norm", "post_mlp_norm", "q_norm", "k_norm")


class FrozenTarget:
    """A target's layers as plain tensors, through which gradients flow to what goes in beside the text."""

    def __init__(self, shape: Shape, source: WeightSource, dtype: torch.dtype, device: torch.device) -> None:
        """All weights of the layers, read once.

        Args:
            source: prepared for a decoder of this shape.
            dtype: of matrices; norms stay in float32.
        """
        self.shape = shape
        self._weights: dict[tuple[int, str, str], Tensor] = {}
        for layer in range(shape.layers):
            for name in (*PRODUCTS, *_NORMS):
                for part in ("weight", "bias"):
                    if source.has(name, layer, part):
                        tensor = source.dense(name, layer, part)
                        kept = tensor if name in _NORMS else tensor.to(dtype)
                        self._weights[layer, name, part] = kept.to(device)
            source.let_go()

    def dense(self, name: str, layer: int | None = None, part: str = "weight") -> Tensor:
        assert layer is not None, "it has the layers' weights alone"
        return self._weights[layer, name, part]

    def has(self, name: str, layer: int | None = None, part: str = "weight") -> bool:
        return layer is not None and (layer, name, part) in self._weights

    def states(
        self, embedded: Tensor, places: Tensor, masks: Tensor, added: Factors = NO_FACTORS, entry: Entry | None = None
    ) -> Tensor:
        """(B, A, m, d) last states of masks behind places of texts. Differentiable by the masks and the additions.

        Mask j stands j + 1 positions behind its place. It sees the text up to its place and the masks before it there.

        Args:
            embedded: (B, S, d) of the texts' tokens.
            places: (B, A) int64.
            masks: (m, d) their embeddings, or (A, m, d) those behind each place.
            added: low-rank additions for the rows of masks, rows of q and k in transformers' order.
            entry: where masks enter; None: at the first layer, as their embeddings.
        """
        shape, (texts, count), behind = self.shape, places.shape, masks.shape[-2]
        added = paired(added, shape.head_dim)
        positions = (places[..., None] + 1 + torch.arange(behind, device=places.device)).flatten(1)
        text, hidden = embedded, masks.expand(texts, count, -1, -1).flatten(1, 2)
        length, first = embedded.shape[1], 0 if entry is None else entry.layer
        for layer in range(shape.layers):
            if entry is not None and layer == first:
                parents = text.gather(1, places[..., None].expand(-1, -1, shape.hidden))
                hidden = entry.states(parents.repeat_interleave(behind, dim=1), hidden)
            kind = shape.attention_kinds[shape.kind_of[layer]]
            rotations = kind.rotations(length + behind)
            along, own = (None, None) if rotations is None else (rotations[:length], rotations[positions.cpu()])
            with torch.no_grad():
                own_layer = DifferentiableLayer(shape, self, layer)
                queries, keys, values = own_layer.heads(text, along)
                if layer + 1 < shape.layers:
                    mixed = mixed_values(queries, keys, values, seen_along(length, kind.window, places.device))
                    text = own_layer.output(text, mixed)
            if layer < first:
                continue
            adapted = DifferentiableLayer(shape, self, layer, added=added)
            queries, own_keys, own_values = adapted.heads(hidden, own)
            seen = _seen_behind(places, behind, length, kind.window)
            mixed = mixed_values(queries, torch.cat([keys, own_keys], 1), torch.cat([values, own_values], 1), seen)
            hidden = adapted.output(hidden, mixed)
        return hidden.view(texts, count, behind, -1)


def frozen_bytes(shape: Shape, dtype: torch.dtype) -> int:
    """Bytes of the matrices of a target's layers."""
    return dtype.itemsize * shape.layers * sum(math.prod(shape.matrix(name)) for name in PRODUCTS)


def _seen_behind(places: Tensor, behind: int, length: int, window: int | None) -> Tensor:
    """(B, 1, A · m, S + A · m) bool, what masks behind these (B, A) places see."""
    texts, count = places.shape
    at = places.repeat_interleave(behind, dim=1)  # (B, A · m) the place of each mask's group
    number = torch.arange(behind, device=places.device).repeat(count)
    position = at + 1 + number
    along = torch.arange(length, device=places.device)
    text = along <= at[..., None]
    group = torch.arange(count, device=places.device).repeat_interleave(behind)
    own = (group[:, None] == group) & (number[:, None] >= number)
    own = own.expand(texts, -1, -1)
    if window is not None:
        text = text & (along > position[..., None] - window)
        own = own & (number[:, None] - number < window)
    return torch.cat([text, own], dim=2)[:, None]


LEARNT_PLACES, MEASURED_PLACES = 24, 12
"""Places of every text behind which masks stand, in a step of learning and where progress is measured."""


CONSISTENCY = 0.1
"""Weight of the distance between a mask's state and the target's own, both of mean square 1."""


@dataclass(frozen=True)
class MaskLearning:
    """Loss and acceptance of masks that run through a target which stays as it is; `sharpness` as in `chain_loss`."""

    target: FrozenTarget
    sharpness: float = SHARPNESS

    def loss(
        self, network: PromptTokens, batch: Batch, columns: Tensor, steps: int, generator: torch.Generator
    ) -> tuple[Tensor, int]:
        """The mean over some places of the summed losses of their masks, and how many places there are.

        The loss of a mask is the divergence of what it says from the target's law. Where there is a sampler, what that
        says with the text's token before it counts too, and how far the mask's state is from the target's own state at
        its place, which stays as it is (latent consistency). `steps` is not asked: all masks learn.
        """
        del steps
        places, taken = _drawn(batch, LEARNT_PLACES, generator)
        states = self._states(network, batch, places)
        total = states.new_zeros(())
        for mask, going in enumerate(_going(batch, places, taken, network.sizes.masks)):
            rows, at = going.nonzero(as_tuple=True)
            logits = logits_of(network, states[rows, at, mask])
            before = places[rows, at] + mask + 1
            labels = labels_at(batch, rows, before, columns, self.sharpness)
            total = total + divergence(logits, labels).sum()
            sampled = network.sampled(states[rows, at, mask], network.shared.embed(batch.tokens[rows, before]))
            if sampled is not None:
                own = network.normed(batch.features[rows, before, -1:])
                apart = (network.normed(states[rows, at, mask]) - own).square().mean(dim=-1)
                total = total + divergence(logits_of(network, sampled), labels).sum() + CONSISTENCY * apart.sum()
        chains = int(taken.sum())
        return total / max(1, chains), chains

    @torch.no_grad()
    def acceptance(self, network: PromptTokens, batch: Batch, columns: Tensor, steps: int) -> Acceptance:
        """How many guesses in a row are what the text says, behind some places; none are right beyond the last mask."""
        masks = network.sizes.masks
        places, taken = _drawn(batch, MEASURED_PLACES, torch.Generator().manual_seed(0))
        states = self._states(network, batch, places)
        lengths, still = torch.zeros_like(places), taken
        for mask, going in enumerate(_going(batch, places, taken, min(masks, steps))):
            last = batch.tokens.shape[1] - 1
            wanted = columns[batch.tokens.gather(1, (places + mask + 2).clamp_max(last))]
            said = states[:, :, mask].flatten(0, 1)  # (B · A, E, d)
            before = batch.tokens.gather(1, (places + mask + 1).clamp_max(last)).flatten()
            sampled = network.sampled(said, network.shared.embed(before))
            hit = right(network.logits(said if sampled is None else sampled), wanted.flatten()).view_as(still)
            still = still & going & hit
            lengths += still
        return Acceptance.of(lengths[taken], steps)

    def _states(self, network: PromptTokens, batch: Batch, places: Tensor) -> Tensor:
        """(B, A, m, E, d) last states of masks behind places."""
        members, count = network.members(), places.shape[1]
        everywhere = places.repeat(1, len(members))
        masks = members.repeat_interleave(count, dim=0)
        embedded = network.shared.embed(batch.tokens)
        states = self.target.states(embedded, everywhere, masks, network.factors(), network.entry())
        return states.view(len(places), len(members), count, *states.shape[2:]).movedim(1, 3)


def _drawn(batch: Batch, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """(B, A) places from which something is drafted, drawn without replacement, and which of them are."""
    able = batch.drafted(1, max(1, batch.tokens.shape[1] - 1))
    scores = torch.rand(able.shape, generator=generator).to(able.device).masked_fill(~able, -1.0)
    best, places = scores.topk(min(count, able.shape[1]), dim=1)
    return places, best >= 0


def _going(batch: Batch, places: Tensor, taken: Tensor, masks: int) -> list[Tensor]:
    """For each mask (B, A) bool, where what it guesses is of the reply."""
    return [taken & (places + mask + 1 <= batch.last[:, None]) for mask in range(masks)]
