"""One layer of a decoder through which gradients flow, with a factor on every head and channel if need be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from specchat.models.base.shape import Shape


class LayerWeights(Protocol):
    """The weights of some layers by our own names; rows that rotate together lie side by side."""

    def dense(self, name: str, layer: int | None = None, part: str = "weight") -> Tensor:
        """A weight in floating point: (outputs, inputs), or (n,) numbers of a norm or a bias."""

    def has(self, name: str, layer: int | None = None, part: str = "weight") -> bool:
        """Whether there is such a weight."""


@dataclass(frozen=True)
class Gates:
    """Factors on what heads and channels pass on: 1 leaves the network as it is, 0 removes them.

    Args:
        heads: (B, heads).
        channels: (B, inner).
    """

    heads: Tensor
    channels: Tensor

    @classmethod
    def open(cls, shape: Shape, texts: int) -> Gates:
        """All of them 1, for so many texts."""
        return cls(torch.ones(texts, shape.heads), torch.ones(texts, shape.inner))


def layer_output(shape: Shape, source: LayerWeights, index: int, hidden: Tensor, gates: Gates | None = None) -> Tensor:
    """(B, S, d) states after a layer of (B, S, d) states before it, of texts that begin at position 0.

    Args:
        gates: None where every head and channel counts as it is.
    """
    normed = _norm(shape, source, "input_norm", index, hidden)
    added = _attention(shape, source, index, normed, gates)
    hidden = hidden + _norm(shape, source, "post_attention_norm", index, added)
    normed = _norm(shape, source, "mlp_norm", index, hidden)
    gate, up = (_product(source, name, index, normed) for name in ("gate", "up"))
    inner = F.gelu(gate, approximate="tanh") if shape.gate == "gelu" else F.silu(gate)
    inner = inner * up if gates is None else inner * up * gates.channels[:, None]
    added = _product(source, "down", index, inner)
    return hidden + _norm(shape, source, "post_mlp_norm", index, added)


def _attention(shape: Shape, source: LayerWeights, index: int, normed: Tensor, gates: Gates | None) -> Tensor:
    batch, length, _ = normed.shape
    queries, keys, values = (
        _product(source, name, index, normed).view(batch, length, -1, shape.head_dim) for name in ("q", "k", "v")
    )
    if source.has("q_norm", index):
        queries, keys = (
            F.rms_norm(heads, (shape.head_dim,), source.dense(name, index), shape.epsilon)
            for heads, name in ((queries, "q_norm"), (keys, "k_norm"))
        )
    kind = shape.attention_kinds[shape.kind_of[index]]
    rotations = kind.rotations(length)
    if rotations is not None:
        queries, keys = (_rotated(heads, rotations.to(heads.device)) for heads in (queries, keys))
    seen = torch.ones(length, length, dtype=torch.bool, device=normed.device).tril()
    if kind.window is not None:
        seen &= seen.new_ones(length, length).triu(1 - kind.window)
    group = shape.heads // shape.kv_heads
    keys, values = (heads.repeat_interleave(group, dim=2) for heads in (keys, values))
    queries, keys, values = (heads.transpose(1, 2) for heads in (queries, keys, values))
    mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=seen)
    if gates is not None:
        mixed = mixed * gates.heads[:, :, None, None]
    return _product(source, "o", index, mixed.transpose(1, 2).flatten(2))


def _rotated(heads: Tensor, rotations: Tensor) -> Tensor:
    floats = heads.to(torch.promote_types(heads.dtype, torch.float32))  # products may be in bfloat16
    pairs = torch.view_as_complex(floats.reshape(*heads.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * rotations).flatten(-2).to(heads.dtype)


def _product(source: LayerWeights, name: str, index: int, x: Tensor) -> Tensor:
    bias = source.dense(name, index, "bias") if source.has(name, index, "bias") else None
    return F.linear(x, source.dense(name, index), bias)


def _norm(shape: Shape, source: LayerWeights, name: str, index: int, x: Tensor) -> Tensor:
    """The normalised states; where a layer has no such norm, the states."""
    if not source.has(name, index):
        return x
    return F.rms_norm(x, (shape.hidden,), source.dense(name, index), shape.epsilon)
