"""Our own decoder for the Llama shape and its relatives: static cache, fused products, the layer loop in our hands."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from specchat.core.seams import Counters, OnLayer, Reading, Rider
from specchat.core.tree import TokenTree
from specchat.models.decoder_weights import DecoderWeights, Layer
from specchat.models.kv_cache import KVCache
from specchat.models.rows import Plan, Rows, common_prefix
from specchat.models.watching import LayerWatch


class Decoder:
    """Runs a decoder over trees. A node dropped in the middle of a pass is really not computed any further."""

    def __init__(self, weights: DecoderWeights, context_tokens: int) -> None:
        self.weights = weights
        self.vocab_size = weights.shape.vocab_size
        self.context_tokens = context_tokens
        self.counters = Counters()
        self.device = weights.device
        self.cache = KVCache(weights.shape.layers, context_tokens)
        self._rows = Rows()
        # A tree may reach a little past the end of the context before it is cut.
        self._turns = weights.shape.turns(context_tokens + 1024).to(self.device)

    def twin(self) -> Decoder:
        """The same weights with a cache of its own."""
        return Decoder(self.weights, self.context_tokens)

    def cached(self, tokens: Sequence[int]) -> int:
        """How many leading tokens of these the cache holds already."""
        return common_prefix(self._rows.prefix, tokens)

    @torch.inference_mode()
    def prefill(self, tokens: Sequence[int], on_chunk: Callable[[int, int], None] | None = None) -> None:
        """Make the cache hold exactly these tokens, reading only what it does not hold yet."""
        self._rows.read_prefix(tokens, lambda plan: self._layers(_Pass(self, plan, ()), None), on_chunk)

    @torch.inference_mode()
    def read(
        self,
        tree: TokenTree,
        new_nodes: Sequence[int] | None = None,
        riders: Sequence[Rider] = (),
        taps: Collection[int] = (),
        on_layer: OnLayer | None = None,
    ) -> Reading:
        """Read nodes of a tree in one pass: all of it, or the new ones."""
        plan = self._rows.plan_tree(tree, new_nodes, riders)
        watch = LayerWatch(tree, plan, taps, on_layer)
        running = _Pass(self, plan, [rider.embedding for rider in riders])
        hidden = self._layers(running, watch)
        logits = self.head(hidden[plan.missing :])
        self._rows.tree_read(plan)
        return watch.reading(logits, len(riders))

    @torch.inference_mode()
    def head(self, hidden: Tensor) -> Tensor:
        """(n, V) logits of (n, d) states: the final norm, then the head. On an early layer's states, an early head."""
        weights = self.weights
        return weights.head(F.rms_norm(hidden, (weights.shape.hidden,), weights.norm, weights.shape.epsilon))

    @torch.inference_mode()
    def keep(self, path: Sequence[int]) -> None:
        """Keep the root and the accepted path, forget the rest of the tree."""
        start = len(self._rows.prefix)
        self.cache.keep_rows_(start, self._rows.keep(path))

    def pretend(self, tokens: int) -> None:
        """Act as if so many tokens had been read; their rows hold zeros or stale values."""
        self._rows.pretend(tokens)

    def _layers(self, running: _Pass, watch: LayerWatch | None) -> Tensor:
        """(rows, d) states after the last layer, of the rows that stayed."""
        hidden = running.embedded
        self.counters.passes += 1
        self.counters.rows += len(hidden)
        for index, layer in enumerate(self.weights.layers):
            self.counters.node_layers += len(hidden)
            hidden = self._attend(index, layer, hidden, running)
            hidden = self._feed_forward(layer, hidden)
            if watch is not None and watch.wants(index):
                stay = watch.after_layer(index, hidden)
                if stay is not None:
                    hidden = hidden[stay]
                    running.drop(stay)
        return hidden

    def _attend(self, index: int, layer: Layer, hidden: Tensor, running: _Pass) -> Tensor:
        shape = self.weights.shape
        rows, kv = len(hidden), shape.kv_heads
        normed = F.rms_norm(hidden, (shape.hidden,), layer.input_norm, shape.epsilon)
        qkv = layer.qkv(normed).view(rows, shape.heads + 2 * kv, shape.head_dim)
        turned = qkv[:, : shape.heads + kv]
        if layer.q_norm is not None and layer.k_norm is not None:
            turned = self._normed_heads(turned, layer.q_norm, layer.k_norm)
        if shape.rotates[index]:
            turned = _turn(turned, running.turns)
        keys, values = running.write(index, turned[:, shape.heads :], qkv[:, shape.heads + kv :])
        # Queries that share a key head are folded into its rows: (1, kv, rows · group, head_dim).
        queries = turned[:, : shape.heads].view(rows, kv, -1, shape.head_dim).transpose(0, 1)
        folded = queries.reshape(1, kv, -1, shape.head_dim)
        mixed = F.scaled_dot_product_attention(folded, keys, values, running.mask)
        mixed = mixed.view(kv, rows, -1, shape.head_dim).transpose(0, 1).reshape(rows, -1)
        return hidden + layer.o(mixed)

    def _normed_heads(self, turned: Tensor, q_norm: Tensor, k_norm: Tensor) -> Tensor:
        shape = self.weights.shape
        size = (shape.head_dim,)
        queries = F.rms_norm(turned[:, : shape.heads], size, q_norm, shape.epsilon)
        return torch.cat([queries, F.rms_norm(turned[:, shape.heads :], size, k_norm, shape.epsilon)], dim=1)

    def _feed_forward(self, layer: Layer, hidden: Tensor) -> Tensor:
        shape = self.weights.shape
        normed = F.rms_norm(hidden, (shape.hidden,), layer.mlp_norm, shape.epsilon)
        gate, up = layer.gate_up(normed).chunk(2, dim=-1)
        return hidden + layer.down(F.silu(gate).mul_(up))


class _Pass:
    """What the rows of one pass carry along: states, rotations, mask, and where they are written."""

    def __init__(self, decoder: Decoder, plan: Plan, embeddings: Sequence[Tensor]) -> None:
        weights = decoder.weights
        self.embedded = weights.embed(plan.tokens)
        if embeddings:
            self.embedded = torch.cat([self.embedded, torch.stack(list(embeddings)).to(self.embedded)])
        self._cache = decoder.cache
        self._group = weights.shape.heads // weights.shape.kv_heads
        self._start = plan.start
        self._places: list[int] | None = None  # rows written, once they are no longer contiguous
        self._seen = plan.mask  # stays on the host: it is looked at there
        positions = torch.tensor(plan.positions, device=decoder.device)
        self.turns = decoder._turns[positions]
        self.mask = self._folded_mask()

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write (rows, kv, head_dim) keys and values; all rows so far, (1, kv, rows so far, head_dim)."""
        end = self._seen.shape[1]
        return self._cache.write(layer, self._start if self._places is None else self._places, end, keys, values)

    def drop(self, stay: list[int]) -> None:
        """Go on with these rows alone; `stay` are places among the rows so far."""
        places = self._places if self._places is not None else list(range(self._start, self._seen.shape[1]))
        self._places = [places[i] for i in stay]
        self._seen = self._seen[stay]
        self.turns = self.turns[stay]
        self.mask = self._folded_mask()

    def _folded_mask(self) -> Tensor | None:
        """(rows · group, rows so far) to add to the scores, or None where every row sees everything."""
        if bool(self._seen.all()):
            return None
        added = torch.zeros(self._seen.shape, dtype=self.embedded.dtype)
        added.masked_fill_(~self._seen, float("-inf"))
        # Folded rows come query by query, the group innermost.
        return added.repeat_interleave(self._group, dim=0).to(self.embedded.device)


def _turn(heads: Tensor, turns: Tensor) -> Tensor:
    """Rotate pairs of neighbouring values: (rows, heads, head_dim) by (rows, 1, head_dim / 2) complex."""
    pairs = torch.view_as_complex(heads.float().view(*heads.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns).flatten(-2).to(heads.dtype)
