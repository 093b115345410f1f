"""A decoder's layers as torch computes them, one operation after another: any device, every precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from specchat.core.transfer import sent
from specchat.models.base.head_output import Said
from specchat.models.base.network import Pass
from specchat.models.own.attention import Attention, folded_mask, fused
from specchat.models.own.fused_ops import PLAIN, Pieces
from specchat.models.own.layer_weights import DecoderWeights, Layer


@dataclass
class Ground:
    """What the rows of a pass stand on: where they are written, what they see, how they are turned.

    Args:
        turns: for each view, (rows, 1, head_dim / 2) complex, or in pairs, as the pieces take them; or None.
        places: (rows,) int64, the cache row of each row.
        keys, values: (layers, kv, capacity, head_dim).
        seen: so many rows of the cache are attended to,
        masks: as far as these, of each view, added to the scores, let them be seen.
    """

    turns: list[Tensor | None]
    places: Tensor
    keys: Tensor
    values: Tensor
    seen: int
    masks: list[Tensor | None]
    attend: Attention


class EagerNetwork:
    """Fused products, static cache, and attention over the rows there are."""

    def __init__(self, weights: DecoderWeights, pieces: Pieces = PLAIN) -> None:
        self.weights = weights
        self.pieces = pieces
        self.shape = weights.shape
        self.precision = weights.precision
        self.device = weights.device
        self.nbytes = weights.nbytes
        self.kernels = "torch"
        self.keys_together = 1
        self.threads = torch.get_num_threads()  # torch's own; nothing here changes them
        shape = weights.shape
        self.like = torch.empty(shape.kv_heads, shape.head_dim, dtype=weights.activations, device=weights.device)

    def embed(self, tokens: Sequence[int]) -> Tensor:
        return self.weights.embed(list(tokens))

    def head(self, hidden: Tensor, totals: bool = False) -> Said:
        normed = F.rms_norm(hidden, (self.shape.hidden,), self.weights.norm, self.shape.epsilon)
        return Said(self.weights.head(normed))

    def run(self, running: Pass) -> Tensor:
        hidden, watch = running.hidden, running.watch
        seen = running.masks(self.shape.views)  # stay on the host: they are looked at there
        ground = self._ground(running, seen)
        added: Tensor | None = None
        for index in range(self.shape.layers):
            running.counters.node_layers += len(hidden)
            hidden, added = self.layer(index, hidden, added, ground)
            if watch is not None and watch.wants(index):
                hidden, added = hidden + added, None
                stay = watch.after_layer(index, hidden)
                if stay is not None:
                    hidden, seen = hidden[stay], [mask[stay] for mask in seen]
                    ground.turns = [None if turns is None else turns[stay] for turns in ground.turns]
                    ground.places = ground.places[stay]
                    ground.masks = [self._mask(mask) for mask in seen]
        return hidden if added is None else hidden + added

    def layer(self, index: int, hidden: Tensor, added: Tensor | None, ground: Ground) -> tuple[Tensor, Tensor]:
        """One layer. The state after it is the sum of what is returned: the next norm adds it up on the way.

        Args:
            hidden: (rows, d), to which `added`, if there is one, is yet to be added.
        """
        layer, pieces, epsilon = self.weights.layers[index], self.pieces, self.shape.epsilon
        hidden, normed = pieces.add_norm(hidden, added, layer.input_norm, epsilon)
        mixed = self._attend(index, layer, normed, ground)
        added = self._normed(layer.o(mixed), layer.post_attention_norm)
        hidden, normed = pieces.add_norm(hidden, added, layer.mlp_norm, epsilon)
        added = layer.down(pieces.gated(layer.gate_up(normed), self.shape.gate == "gelu"))
        return hidden, self._normed(added, layer.post_mlp_norm)

    def _normed(self, added: Tensor, weight: Tensor | None) -> Tensor:
        return added if weight is None else F.rms_norm(added, (self.shape.hidden,), weight, self.shape.epsilon)

    def _attend(self, index: int, layer: Layer, normed: Tensor, ground: Ground) -> Tensor:
        shape = self.shape
        view = shape.view_of[index]
        qkv = layer.qkv(normed).view(len(normed), -1, shape.head_dim)
        turns = ground.turns[view]
        keys, values = ground.keys[index], ground.values[index]
        queries = self.pieces.store_(qkv, layer.q_norm, layer.k_norm, shape.epsilon, turns, ground.places, keys, values)
        return ground.attend(queries, keys[:, : ground.seen], values[:, : ground.seen], ground.masks[view])

    def _ground(self, running: Pass, seen: list[Tensor]) -> Ground:
        start, end = running.plan.start, running.plan.mask.shape[1]
        keys, values = running.cache.room_for(end, self.like)
        places = torch.arange(start, end, device=self.device)
        turns = [self.pieces.turns(turns) for turns in running.turns]
        return Ground(turns, places, keys, values, end, [self._mask(mask) for mask in seen], fused)

    def _mask(self, seen: Tensor) -> Tensor | None:
        if bool(seen.all()):
            return None
        group = self.shape.heads // self.shape.kv_heads
        return folded_mask(sent(seen, self.device), group, self.weights.activations)
