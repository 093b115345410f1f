"""A decoder layer of a trained network, over a text or among a few states."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specchat.models.draft_heads.attention_rows import AttentionRows
from specchat.models.draft_heads.rotation import Rotation
from specchat.models.draft_heads.shared_weights import rms_normalize
from specchat.models.draft_heads.sizes import LayerSizes


class DecoderLayer(nn.Module):
    """Attention and an MLP, each added to what goes in. What attends to what is up to the caller."""

    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__()
        self.sizes = sizes
        d, queries = sizes.hidden, sizes.heads * sizes.head_dim
        self.attention_norm = nn.Parameter(torch.ones(d))
        self.qkv = nn.Linear(d, queries + 2 * sizes.kv_heads * sizes.head_dim, bias=False)
        self.o = nn.Linear(queries, d, bias=False)
        self.mlp_norm = nn.Parameter(torch.ones(d))
        self.gate_up = nn.Linear(d, 2 * sizes.inner, bias=False)
        self.down = nn.Linear(sizes.inner, d, bias=False)
        self._rotation = Rotation(sizes.theta, sizes.head_dim)

    def over_text(self, states: Tensor) -> Tensor:
        """(B, S, d) states that attend to those up to their own place."""
        positions = torch.arange(states.shape[1], device=states.device)
        return self.after_attention(states, _mixed(*self.before_attention(states, positions), causal=True))

    def behind(self, rows: AttentionRows, first: int, states: Tensor) -> Tensor:
        """(n, d) states at positions from `first` on, which attend to those up to their own; `rows` has the earlier."""
        positions = torch.arange(first, first + len(states))
        seen = torch.ones(len(states), first + len(states), dtype=torch.bool).tril(first)
        return self.after_attention(states, rows.attend(first, *self.before_attention(states, positions), seen))

    def among(self, states: Tensor) -> Tensor:
        """(…, K, d) states that all attend to each other, whatever their order."""
        return self.after_attention(states, _mixed(*self._before(states), causal=False))

    def before_attention(self, states: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, (…, A, heads, head_dim), of (…, A, d) states at (A,) ascending positions."""
        queries, keys, values = self._before(states)
        return self._rotation(queries, positions), self._rotation(keys, positions), values

    def _before(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, (…, heads, head_dim), not yet rotated."""
        sizes = self.sizes
        normed = rms_normalize(states, sizes.epsilon) * self.attention_norm
        heads = self.qkv(normed).unflatten(-1, (sizes.heads + 2 * sizes.kv_heads, sizes.head_dim))
        queries, keys, values = heads.split([sizes.heads, sizes.kv_heads, sizes.kv_heads], dim=-2)
        return queries, keys, values

    def after_attention(self, states: Tensor, mixed: Tensor) -> Tensor:
        """(…, d) the layer's output, from (…, d) and (…, heads · head_dim)."""
        attended = states + self.o(mixed)
        gate, up = self.gate_up(rms_normalize(attended, self.sizes.epsilon) * self.mlp_norm).chunk(2, dim=-1)
        after: Tensor = attended + self.down(F.silu(gate) * up)
        return after


def _mixed(queries: Tensor, keys: Tensor, values: Tensor, *, causal: bool) -> Tensor:
    """(…, A, heads · head_dim) of (…, A, heads, head_dim)."""
    queries, keys, values = (each.transpose(-3, -2) for each in (queries, keys, values))
    mixed = F.scaled_dot_product_attention(queries, keys, values, is_causal=causal, enable_gqa=True)
    return mixed.transpose(-3, -2).flatten(-2)
