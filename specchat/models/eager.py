"""A decoder's layers as torch computes them, one operation after another: any device, every precision."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from specchat.models.decoder_weights import DecoderWeights, Layer
from specchat.models.network import Pass


class EagerNetwork:
    """Fused products, static cache, and attention over the rows there are."""

    def __init__(self, weights: DecoderWeights) -> None:
        self.weights = weights
        self.shape = weights.shape
        self.precision = weights.precision
        self.device = weights.device
        self.nbytes = weights.nbytes
        self.kernels = "torch"
        self.keys_together = 1
        self.threads = torch.get_num_threads()  # torch's own; nothing here changes them

    def embed(self, tokens: Sequence[int]) -> Tensor:
        return self.weights.embed(list(tokens))

    def head(self, hidden: Tensor) -> tuple[Tensor, Tensor | None]:
        normed = F.rms_norm(hidden, (self.shape.hidden,), self.weights.norm, self.shape.epsilon)
        return self.weights.head(normed), None

    def run(self, running: Pass) -> Tensor:
        rows, hidden, watch = _Rows(running, self.shape.heads // self.shape.kv_heads), running.hidden, running.watch
        for index, layer in enumerate(self.weights.layers):
            running.counters.node_layers += len(hidden)
            hidden = self._attend(index, layer, hidden, rows)
            hidden = self._feed_forward(layer, hidden)
            if watch is not None and watch.wants(index):
                stay = watch.after_layer(index, hidden)
                if stay is not None:
                    hidden = hidden[stay]
                    rows.drop(stay)
        return hidden

    def _attend(self, index: int, layer: Layer, hidden: Tensor, running: _Rows) -> Tensor:
        shape = self.shape
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
        shape = self.shape
        size = (shape.head_dim,)
        queries = F.rms_norm(turned[:, : shape.heads], size, q_norm, shape.epsilon)
        return torch.cat([queries, F.rms_norm(turned[:, shape.heads :], size, k_norm, shape.epsilon)], dim=1)

    def _feed_forward(self, layer: Layer, hidden: Tensor) -> Tensor:
        shape = self.shape
        normed = F.rms_norm(hidden, (shape.hidden,), layer.mlp_norm, shape.epsilon)
        gate, up = layer.gate_up(normed).chunk(2, dim=-1)
        return hidden + layer.down(F.silu(gate).mul_(up))


class _Rows:
    """What the rows of one pass carry along: rotations, mask, and where they are written."""

    def __init__(self, running: Pass, group: int) -> None:
        self.turns = running.turns
        self._cache = running.cache
        self._group = group
        self._start = running.plan.start
        self._places: list[int] | None = None  # rows written, once they are no longer contiguous
        self._seen = running.plan.mask  # stays on the host: it is looked at there
        self._like = running.hidden
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
        added = torch.zeros(self._seen.shape, dtype=self._like.dtype)
        added.masked_fill_(~self._seen, float("-inf"))
        # Folded rows come query by query, the group innermost.
        return added.repeat_interleave(self._group, dim=0).to(self._like.device)


def _turn(heads: Tensor, turns: Tensor) -> Tensor:
    """Rotate pairs of neighbouring values: (rows, heads, head_dim) by (rows, 1, head_dim / 2) complex."""
    pairs = torch.view_as_complex(heads.float().view(*heads.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns).flatten(-2).to(heads.dtype)
