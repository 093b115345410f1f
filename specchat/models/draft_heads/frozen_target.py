"""A target whose weights stay as they are, run over texts and over masks behind some of their places."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from specchat.models.decoder.adapters import Factors
from specchat.models.decoder.differentiable_layer import (
    NO_FACTORS,
    attended,
    heads_of,
    input_of,
    mixed_values,
    mlp_output,
    seen_along,
)
from specchat.models.decoder.shape import Shape
from specchat.models.weights.weight_source import WeightSource, paired_rows

_NAMES = ("q", "k", "v", "o", "gate", "up", "down")
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
            for name in (*_NAMES, *_NORMS):
                for part in ("weight", "bias"):
                    if source.has(name, layer, part):
                        tensor = source.dense(name, layer, part)
                        kept = tensor if name in _NORMS else tensor.to(dtype)
                        self._weights[layer, name, part] = kept.to(device)
            source.let_go()

    def dense(self, name: str, layer: int | None = None, part: str = "weight") -> Tensor:
        """A weight of a layer."""
        assert layer is not None, "it has the layers' weights alone"
        return self._weights[layer, name, part]

    def has(self, name: str, layer: int | None = None, part: str = "weight") -> bool:
        """Whether there is such a weight."""
        return layer is not None and (layer, name, part) in self._weights

    def states(self, embedded: Tensor, places: Tensor, masks: Tensor, added: Factors = NO_FACTORS) -> Tensor:
        """(B, A, m, d) last states of masks behind places of texts. Differentiable by the masks and the additions.

        Mask j stands j + 1 positions behind its place. It sees the text up to its place and the masks before it there.

        Args:
            embedded: (B, S, d) of the texts' tokens.
            places: (B, A) int64.
            masks: (m, d) their embeddings.
            added: low-rank additions for the rows of masks, rows of q and k in transformers' order.
        """
        shape, (texts, count), behind = self.shape, places.shape, len(masks)
        added = {
            (layer, name): (down, up[paired_rows(len(up), shape.head_dim)] if name in ("q", "k") else up)
            for (layer, name), (down, up) in added.items()
        }
        positions = (places[..., None] + 1 + torch.arange(behind, device=places.device)).flatten(1)
        text, hidden = embedded, masks.expand(texts, count, -1, -1).flatten(1, 2)
        length = embedded.shape[1]
        for layer in range(shape.layers):
            kind = shape.attention_kinds[shape.kind_of[layer]]
            rotations = kind.rotations(length + behind)
            along, own = (None, None) if rotations is None else (rotations[:length], rotations[positions.cpu()])
            with torch.no_grad():
                queries, keys, values = heads_of(shape, self, layer, input_of(shape, self, layer, text), along)
                if layer + 1 < shape.layers:
                    mixed = mixed_values(queries, keys, values, seen_along(length, kind.window, places.device))
                    text = mlp_output(shape, self, layer, attended(shape, self, layer, text, mixed))
            normed = input_of(shape, self, layer, hidden)
            queries, own_keys, own_values = heads_of(shape, self, layer, normed, own, added)
            seen = _seen_behind(places, behind, length, kind.window)
            mixed = mixed_values(queries, torch.cat([keys, own_keys], 1), torch.cat([values, own_values], 1), seen)
            hidden = mlp_output(shape, self, layer, attended(shape, self, layer, hidden, mixed, added))
        return hidden.view(texts, count, behind, -1)


def frozen_bytes(shape: Shape) -> int:
    """What the matrices of a target's layers take in bfloat16."""
    return 2 * shape.layers * sum(math.prod(shape.matrix(name)) for name in _NAMES)


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
