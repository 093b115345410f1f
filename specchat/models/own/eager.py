"""A decoder's layers as torch computes them, one operation after another: any device, every precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor

from specchat.core.request import Adapter
from specchat.core.transfer import sent
from specchat.models.base.adapters import Adapted, Adapting, Factors, checked, paired, sizes_of
from specchat.models.base.head_output import Said
from specchat.models.base.network import Pass
from specchat.models.base.sub_layers import SubLayers
from specchat.models.own.attention import Attention, folded_mask, fused
from specchat.models.own.fused_ops import PLAIN, Pieces
from specchat.models.own.layer_weights import DecoderWeights, Layer

_WHOLE_O, _WHOLE_DOWN = {"o": slice(None)}, {"down": slice(None)}


@dataclass
class Ground:
    """What the rows of a pass stand on: where they are written, what they see, how they are turned.

    Args:
        turns: for each view, (rows, 1, head_dim / 2) complex, or in pairs, as the pieces take them; or None.
        places: (rows,) int64, the cache row of each row.
        keys, values: (layers, kv, capacity, head_dim).
        seen: so many rows of the cache are attended to,
        masks: as far as these, of each view, added to the scores, let them be seen.
        parts: which halves of layers are computed.
        place_of: where a layer's keys and values lie in the cache.
        adapted: the rows on which adapters act.
    """

    turns: list[Tensor | None]
    places: Tensor
    keys: Tensor
    values: Tensor
    seen: int
    masks: list[Tensor | None]
    attend: Attention
    parts: SubLayers
    place_of: Mapping[int, int]
    adapted: Adapting | None = None


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
        queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        ends = (queries, queries + keys, queries + 2 * keys)
        self._qkv = {"q": slice(0, ends[0]), "k": slice(ends[0], ends[1]), "v": slice(ends[1], ends[2])}
        self._gate_up = {"gate": slice(0, shape.inner), "up": slice(shape.inner, 2 * shape.inner)}
        self._adapters: WeakKeyDictionary[Adapter, Factors] = WeakKeyDictionary()
        self.like = torch.empty(shape.kv_heads, shape.head_dim, dtype=weights.activations, device=weights.device)

    def embed(self, tokens: Sequence[int]) -> Tensor:
        return self.weights.embed(list(tokens))

    def head_rows(self, tokens: Sequence[int]) -> Tensor:
        return self.weights.head_rows(list(tokens))

    def head(self, hidden: Tensor, totals: bool = False) -> Said:
        normed = F.rms_norm(hidden, (self.shape.hidden,), self.weights.norm, self.shape.epsilon)
        return Said(self.weights.head(normed))

    def run(self, running: Pass) -> Tensor:
        hidden, watch = running.hidden, running.watch
        seen = running.masks(self.shape.views)  # stay on the host: they are looked at there
        ground = self._ground(running, seen)
        added: Tensor | None = None
        for index in range(self.shape.layers):
            running.counters.node_layers += running.parts.computed(range(index, index + 1)) * len(hidden)
            hidden, added = self.layer(index, hidden, added, ground)
            if watch is not None and watch.wants(index):
                hidden, added = hidden if added is None else hidden + added, None
                stay = watch.after_layer(index, hidden)
                if stay is not None:
                    hidden, seen = hidden[stay], [mask[stay] for mask in seen]
                    ground.turns = [None if turns is None else turns[stay] for turns in ground.turns]
                    ground.places = ground.places[stay]
                    ground.masks = [self._mask(mask) for mask in seen]
        return hidden if added is None else hidden + added

    def layer(self, index: int, hidden: Tensor, added: Tensor | None, ground: Ground) -> tuple[Tensor, Tensor | None]:
        """One layer. The state after it is the sum of what is returned: the next norm adds it up on the way.

        Halves that are left out add nothing.

        Args:
            hidden: (rows, d), to which `added`, if there is one, is yet to be added.
        """
        layer, pieces, epsilon = self.weights.layers[index], self.pieces, self.shape.epsilon
        if index in ground.parts.attention:
            hidden, normed = pieces.add_norm(hidden, added, layer.input_norm, epsilon)
            mixed = self._attend(index, layer, normed, ground)
            added = self._adapted(ground, index, _WHOLE_O, mixed, layer.o(mixed))
            added = self._normed(added, layer.post_attention_norm)
        if index in ground.parts.mlp:
            hidden, normed = pieces.add_norm(hidden, added, layer.mlp_norm, epsilon)
            gate_up = self._adapted(ground, index, self._gate_up, normed, layer.gate_up(normed))
            inner = pieces.gated(gate_up, self.shape.gate == "gelu")
            added = self._adapted(ground, index, _WHOLE_DOWN, inner, layer.down(inner))
            added = self._normed(added, layer.post_mlp_norm)
        return hidden, added

    def _normed(self, added: Tensor, weight: Tensor | None) -> Tensor:
        return added if weight is None else F.rms_norm(added, (self.shape.hidden,), weight, self.shape.epsilon)

    def _attend(self, index: int, layer: Layer, normed: Tensor, ground: Ground) -> Tensor:
        shape = self.shape
        view, place = shape.view_of[index], ground.place_of[index]
        qkv = self._adapted(ground, index, self._qkv, normed, layer.qkv(normed)).view(len(normed), -1, shape.head_dim)
        turns = ground.turns[view]
        keys, values = ground.keys[place], ground.values[place]
        queries = self.pieces.store_(qkv, layer.q_norm, layer.k_norm, shape.epsilon, turns, ground.places, keys, values)
        return ground.attend(queries, keys[:, : ground.seen], values[:, : ground.seen], ground.masks[view])

    def _ground(self, running: Pass, seen: list[Tensor]) -> Ground:
        end = running.plan.mask.shape[1]
        keys, values = running.cache.room_for(end, self.like)
        places = sent(torch.tensor(running.plan.written), self.device)
        turns, masks = [self.pieces.turns(turns) for turns in running.turns], [self._mask(mask) for mask in seen]
        adapted = Adapted.of(running.riders, self.prepared, self.device)
        return Ground(turns, places, keys, values, end, masks, fused, running.parts, running.cache.place_of, adapted)

    def _adapted(self, ground: Ground, index: int, columns: Mapping[str, slice], x: Tensor, out: Tensor) -> Tensor:
        """The product `out` of x, with what adapters add to their rows."""
        if ground.adapted is not None:
            ground.adapted.add_(index, columns, x, out)
        return out

    def prepared(self, adapter: Adapter) -> Factors:
        """The adapter in this network's order and format."""
        if adapter not in self._adapters:
            shape, like = self.shape, self.like
            checked(adapter, shape.layers, sizes_of(shape))
            factors = paired(adapter, shape.head_dim)
            self._adapters[adapter] = {where: (down.to(like), up.to(like)) for where, (down, up) in factors.items()}
        return self._adapters[adapter]

    def _mask(self, seen: Tensor) -> Tensor | None:
        if bool(seen.all()):
            return None
        group = self.shape.heads // self.shape.kv_heads
        return folded_mask(sent(seen, self.device), group, self.weights.activations)
