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


@dataclass(frozen=True)
class DifferentiableLayer:
    """One layer over (B, S, d) states.

    Args:
        gates: None where everything counts as it is.
        added: low-rank additions, in the order of the source's rows.
    """

    shape: Shape
    source: LayerWeights
    index: int
    gates: Gates | None = None
    added: Factors = field(default_factory=dict)

    def __call__(self, hidden: Tensor) -> Tensor:
        """The states after it of states before it, of texts that begin at position 0."""
        length, kind = hidden.shape[1], self.shape.attention_kinds[self.shape.kind_of[self.index]]
        queries, keys, values = self.heads(hidden, kind.rotations(length))
        mixed = mixed_values(queries, keys, values, seen_along(length, kind.window, hidden.device))
        return self.output(hidden, mixed if self.gates is None else mixed * self.gates.heads[:, None, :, None])

    def heads(self, hidden: Tensor, rotations: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, S, heads, head_dim), keys and values (B, S, kv_heads, head_dim), rotated, of states before it.

        Args:
            rotations: (S, 1, head_dim / 2), or with (B, …) for each text; None where nothing is rotated.
        """
        shape, normed = self.shape, self._norm("input_norm", hidden)
        queries, keys, values = (
            self._product(name, normed).view(*normed.shape[:2], -1, shape.head_dim) for name in ("q", "k", "v")
        )
        if self.source.has("q_norm", self.index):
            queries, keys = (
                F.rms_norm(heads, (shape.head_dim,), self.source.dense(name, self.index), shape.epsilon)
                for heads, name in ((queries, "q_norm"), (keys, "k_norm"))
            )
        if rotations is not None:
            queries, keys = (_rotated(heads, rotations.to(heads.device)) for heads in (queries, keys))
        return queries, keys, values

    def output(self, hidden: Tensor, mixed: Tensor) -> Tensor:
        """The states after it, of those before it and of the (B, S, heads, head_dim) values that attention mixed."""
        hidden = hidden + self._norm("post_attention_norm", self._product("o", mixed.flatten(2)))
        normed = self._norm("mlp_norm", hidden)
        gate, up = self._product("gate", normed), self._product("up", normed)
        inner = F.gelu(gate, approximate="tanh") if self.shape.gate == "gelu" else F.silu(gate)
        inner = inner * up if self.gates is None else inner * up * self.gates.channels[:, None]
        return hidden + self._norm("post_mlp_norm", self._product("down", inner))

    def _product(self, name: str, x: Tensor) -> Tensor:
        source, index, gates = self.source, self.index, self.gates
        bias = source.dense(name, index, "bias") if source.has(name, index, "bias") else None
        x = x if gates is None or name in WRITERS else gates.through(name, x)
        product = F.linear(x, source.dense(name, index), bias)
        product = product if gates is None or name in READERS else gates.through(name, product)
        if (found := self.added.get((index, name))) is None:
            return product
        down, up = found
        return product + F.linear(F.linear(x, down), up)

    def _norm(self, name: str, x: Tensor) -> Tensor:
        """The normalised states; where a layer has no such norm, the states."""
        if not self.source.has(name, self.index):
            return x
        normed = F.rms_norm(x, (self.shape.hidden,), self.source.dense(name, self.index), self.shape.epsilon)
        return normed if self.gates is None else self.gates.through(name, normed)


def seen_along(length: int, window: int | None, device: torch.device) -> Tensor:
    """(S, S) bool, what each place of a text sees of it."""
    seen = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    return seen if window is None else seen & torch.ones_like(seen).triu(1 - window)


def mixed_values(queries: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
    """(B, Q, heads, head_dim) what queries (B, Q, heads, head_dim) take of values (B, S, kv_heads, head_dim).

    Args:
        seen: (Q, S) bool, or (B, 1, Q, S), which keys each query sees.
    """
    group = queries.shape[2] // keys.shape[2]
    keys, values = (heads.repeat_interleave(group, dim=2) for heads in (keys, values))
    queries, keys, values = (heads.transpose(1, 2) for heads in (queries, keys, values))
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=seen).transpose(1, 2)


def _rotated(heads: Tensor, rotations: Tensor) -> Tensor:
    floats = heads.to(torch.promote_types(heads.dtype, torch.float32))  # products may be in bfloat16
    pairs = torch.view_as_complex(floats.reshape(*heads.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * rotations).flatten(-2).to(heads.dtype)
