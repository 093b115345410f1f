"""One layer of a decoder through which gradients flow, with factors on heads, channels and dimensions if need be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from specchat.models.decoder.adapters import Factors
from specchat.models.decoder.shape import Shape

NO_FACTORS: Factors = {}
"""Nothing is added to any product."""


class LayerWeights(Protocol):
    """The weights of some layers by our own names; rows that rotate together lie side by side."""

    def dense(self, name: str, layer: int | None = None, part: str = "weight") -> Tensor:
        """A weight in floating point: (outputs, inputs), or (n,) numbers of a norm or a bias."""

    def has(self, name: str, layer: int | None = None, part: str = "weight") -> bool:
        """Whether there is such a weight."""


READERS, WRITERS = ("q", "k", "v", "gate", "up"), ("o", "down")
"""Matrices whose inputs, or outputs, are hidden states."""

NORMS = ("input_norm", "mlp_norm", "post_attention_norm", "post_mlp_norm")


@dataclass(frozen=True)
class Gates:
    """Factors on what heads, channels and weights pass on: 1 leaves the network as it is, 0 removes them.

    Args:
        heads: (B, heads).
        channels: (B, inner).
        dimensions: weight → (B, d) factors on its rows or columns that belong to dimensions of the hidden state.
    """

    heads: Tensor
    channels: Tensor
    dimensions: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def open(cls, shape: Shape, texts: int) -> Gates:
        """All of them 1, for so many texts; gradients flow to them."""
        heads, channels = (torch.ones(texts, size, requires_grad=True) for size in (shape.heads, shape.inner))
        names = (*READERS, *WRITERS, *NORMS)
        return cls(heads, channels, {name: torch.ones(texts, shape.hidden, requires_grad=True) for name in names})

    def through(self, name: str, states: Tensor) -> Tensor:
        """(B, S, d) states that a weight reads or writes, as far as they pass."""
        return states * self.dimensions[name][:, None] if name in self.dimensions else states


def layer_output(shape: Shape, source: LayerWeights, index: int, hidden: Tensor, gates: Gates | None = None) -> Tensor:
    """(B, S, d) states after a layer of (B, S, d) states before it, of texts that begin at position 0.

    Args:
        gates: None where everything counts as it is.
    """
    mixed = _mixed(shape, source, index, input_of(shape, source, index, hidden, gates), gates)
    hidden = attended(shape, source, index, hidden, mixed, gates=gates)
    return mlp_output(shape, source, index, hidden, gates)


def mlp_output(shape: Shape, source: LayerWeights, index: int, hidden: Tensor, gates: Gates | None = None) -> Tensor:
    """(B, S, d) states after a layer's MLP, of (B, S, d) states after its attention."""
    normed = _norm(shape, source, "mlp_norm", index, hidden, gates)
    gate, up = (_product(source, name, index, normed, gates=gates) for name in ("gate", "up"))
    inner = F.gelu(gate, approximate="tanh") if shape.gate == "gelu" else F.silu(gate)
    inner = inner * up if gates is None else inner * up * gates.channels[:, None]
    added = _product(source, "down", index, inner, gates=gates)
    return hidden + _norm(shape, source, "post_mlp_norm", index, added, gates)


def _mixed(shape: Shape, source: LayerWeights, index: int, normed: Tensor, gates: Gates | None) -> Tensor:
    """(B, S, heads, head_dim) what every place of a text takes of the values up to it."""
    length = normed.shape[1]
    kind = shape.attention_kinds[shape.kind_of[index]]
    queries, keys, values = heads_of(shape, source, index, normed, kind.rotations(length), gates=gates)
    mixed = mixed_values(queries, keys, values, seen_along(length, kind.window, normed.device))
    return mixed if gates is None else mixed * gates.heads[:, None, :, None]


def seen_along(length: int, window: int | None, device: torch.device) -> Tensor:
    """(S, S) bool, what each place of a text sees of it."""
    seen = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    return seen if window is None else seen & torch.ones_like(seen).triu(1 - window)


def heads_of(
    shape: Shape,
    source: LayerWeights,
    index: int,
    normed: Tensor,
    rotations: Tensor | None,
    added: Factors = NO_FACTORS,
    gates: Gates | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries (B, S, heads, head_dim), keys and values (B, S, kv_heads, head_dim), rotated, of (B, S, d) states.

    Args:
        rotations: (S, 1, head_dim / 2), or with (B, …) for each text; None where nothing is rotated.
        added: low-rank additions, in the order of the source's rows.
    """
    queries, keys, values = (
        _product(source, name, index, normed, added, gates).view(*normed.shape[:2], -1, shape.head_dim)
        for name in ("q", "k", "v")
    )
    if source.has("q_norm", index):
        queries, keys = (
            F.rms_norm(heads, (shape.head_dim,), source.dense(name, index), shape.epsilon)
            for heads, name in ((queries, "q_norm"), (keys, "k_norm"))
        )
    if rotations is not None:
        queries, keys = (_rotated(heads, rotations.to(heads.device)) for heads in (queries, keys))
    return queries, keys, values


def mixed_values(queries: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
    """(B, Q, heads, head_dim) what queries (B, Q, heads, head_dim) take of values (B, S, kv_heads, head_dim).

    Args:
        seen: (Q, S) bool, or (B, 1, Q, S), which keys each query sees.
    """
    group = queries.shape[2] // keys.shape[2]
    keys, values = (heads.repeat_interleave(group, dim=2) for heads in (keys, values))
    queries, keys, values = (heads.transpose(1, 2) for heads in (queries, keys, values))
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=seen).transpose(1, 2)


def attended(
    shape: Shape,
    source: LayerWeights,
    index: int,
    hidden: Tensor,
    mixed: Tensor,
    added: Factors = NO_FACTORS,
    gates: Gates | None = None,
) -> Tensor:
    """(B, S, d) states after a layer's attention, of (B, S, d) states before it and (B, S, heads, head_dim) values."""
    output = _product(source, "o", index, mixed.flatten(2), added, gates)
    return hidden + _norm(shape, source, "post_attention_norm", index, output, gates)


def input_of(shape: Shape, source: LayerWeights, index: int, hidden: Tensor, gates: Gates | None = None) -> Tensor:
    """(B, S, d) what a layer's attention multiplies, of (B, S, d) states before the layer."""
    return _norm(shape, source, "input_norm", index, hidden, gates)


def _rotated(heads: Tensor, rotations: Tensor) -> Tensor:
    floats = heads.to(torch.promote_types(heads.dtype, torch.float32))  # products may be in bfloat16
    pairs = torch.view_as_complex(floats.reshape(*heads.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * rotations).flatten(-2).to(heads.dtype)


def _product(
    source: LayerWeights, name: str, index: int, x: Tensor, added: Factors = NO_FACTORS, gates: Gates | None = None
) -> Tensor:
    bias = source.dense(name, index, "bias") if source.has(name, index, "bias") else None
    x = x if gates is None or name in WRITERS else gates.through(name, x)
    product = F.linear(x, source.dense(name, index), bias)
    product = product if gates is None or name in READERS else gates.through(name, product)
    if (found := added.get((index, name))) is None:
        return product
    down, up = found
    return product + F.linear(F.linear(x, down), up)


def _norm(shape: Shape, source: LayerWeights, name: str, index: int, x: Tensor, gates: Gates | None = None) -> Tensor:
    """The normalised states; where a layer has no such norm, the states."""
    if not source.has(name, index):
        return x
    normed = F.rms_norm(x, (shape.hidden,), source.dense(name, index), shape.epsilon)
    return normed if gates is None else gates.through(name, normed)
