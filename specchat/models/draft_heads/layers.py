"""Building blocks of draft networks: norm, rotation, a decoder layer, attention while drafting and learning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specchat.core.device_copy import to_device
from specchat.models.draft_heads.sizes import DecoderSizes


def rms_normalize(states: Tensor, epsilon: float) -> Tensor:
    """States (…, d) scaled to a mean square of 1."""
    return F.rms_norm(states, states.shape[-1:], eps=epsilon)


def with_mlp(states: Tensor, norm: Tensor, gate_up: nn.Module, down: nn.Module, epsilon: float) -> Tensor:
    """(…, d) states with the output of their MLP added."""
    gate, up = gate_up(rms_normalize(states, epsilon) * norm).chunk(2, dim=-1)
    after: Tensor = states + down(F.silu(gate) * up)
    return after


def by_depth(blocks: nn.Module, entries: Tensor, epsilon: float) -> Tensor:
    """(…, K, d) states of K depths, from (…, d) entries and the product, (K · d, d), of their residual blocks."""
    ahead = blocks(rms_normalize(entries, epsilon)).unflatten(-1, (-1, entries.shape[-1]))
    states: Tensor = entries.unsqueeze(-2) + F.silu(ahead)
    return states


class Rotation:
    """Turns the halves of every head, as pairs, by angles that grow with the position.

    Reference: Su et al., RoFormer, arXiv:2104.09864.
    """

    def __init__(self, theta: float, head_dim: int) -> None:
        """Angles of base `theta`; `frequencies` may be replaced before the first use."""
        self.frequencies = theta ** -(torch.arange(0, head_dim, 2, device="cpu") / head_dim)
        self._table = torch.empty(0)

    def __call__(self, heads: Tensor, positions: Tensor) -> Tensor:
        """(…, A, heads, head_dim) rotated, those of row a as far as the (A,) ascending positions say.

        On a device nothing waits where the positions are on the host.
        """
        cos, sin = self._turns(positions, heads.device).unbind(1)
        rotated: Tensor = heads * cos + heads.roll(heads.shape[-1] // 2, dims=-1) * sin
        return rotated.to(heads.dtype)

    def _turns(self, positions: Tensor, device: torch.device) -> Tensor:
        """(A, 2, 1, head_dim) cosines and sines of these positions, those of the first half of a head negative."""
        last = int(positions[-1])
        if last >= len(self._table) or self._table.device != device:
            angles = torch.arange(max(2 * last, 512))[:, None] * self.frequencies
            cos, sin = torch.cat([angles.cos()] * 2, -1), torch.cat([-angles.sin(), angles.sin()], -1)
            self._table = torch.stack([cos, sin], dim=1)[:, :, None].to(device)
        return self._table[to_device(positions, device)]


class DecoderLayer(nn.Module):
    """Attention and an MLP, each added to what goes in. What attends to what is up to the caller."""

    def __init__(self, sizes: DecoderSizes) -> None:
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

    @property
    def added(self) -> tuple[Tensor, ...]:
        return self.o.weight, self.down.weight

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
        return with_mlp(states + self.o(mixed), self.mlp_norm, self.gate_up, self.down, self.sizes.epsilon)


def _mixed(queries: Tensor, keys: Tensor, values: Tensor, *, causal: bool) -> Tensor:
    """(…, A, heads · head_dim) of (…, A, heads, head_dim)."""
    queries, keys, values = (each.transpose(-3, -2) for each in (queries, keys, values))
    mixed = F.scaled_dot_product_attention(queries, keys, values, is_causal=causal, enable_gqa=True)
    return mixed.transpose(-3, -2).flatten(-2)


# ----------------------------------------------------------------------------------------------- while drafting


class AttentionRows:
    """Keys and values of rows that were read: those of a text's entries, and behind them those of one tree."""

    def __init__(self, kv_heads: int, head_dim: int) -> None:
        self._keys = self._values = torch.empty(kv_heads, 0, head_dim)

    def write(self, place: int, keys: Tensor, values: Tensor) -> None:
        """Keep (n, kv_heads, head_dim) keys and values of rows from `place` on, over what was there."""
        end = place + len(keys)
        self._room_for(end, keys)
        self._keys[:, place:end] = keys.transpose(0, 1)
        self._values[:, place:end] = values.transpose(0, 1)

    def attend(self, place: int, queries: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
        """(n, heads · head_dim) what rows attend to, after they were written from `place` on.

        Args:
            queries: (n, heads, head_dim).
            keys, values: (n, kv_heads, head_dim).
            seen: (n, place + n) bool, on the host, what each row attends to.
        """
        self.write(place, keys, values)
        end = place + len(keys)
        return _attend(queries, self._keys[:, :end], self._values[:, :end], to_device(seen, queries.device))

    def _room_for(self, rows: int, like: Tensor) -> None:
        """Let so many rows fit, in the format and on the device of the first that were written."""
        if rows > self._keys.shape[1]:
            more = max(rows, 2 * self._keys.shape[1], 512) - self._keys.shape[1]
            self._keys, self._values = (F.pad(kept.to(like), (0, 0, 0, more)) for kept in (self._keys, self._values))


def _attend(queries: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
    """(n, heads · head_dim) of queries (n, heads, head_dim), keys and values (kv_heads, rows, head_dim) and (n, rows)
    bool. The heads that share keys are rows of one product, so that no keys are copied."""
    (rows, heads, size), shared = queries.shape, len(keys)
    grouped = queries.view(rows, shared, heads // shared, size).transpose(0, 1).reshape(shared, -1, size)
    scores = torch.bmm(grouped * size**-0.5, keys.transpose(1, 2))
    scores.view(shared, rows, -1, keys.shape[1]).masked_fill_(~seen[:, None], -torch.inf)
    mixed = torch.bmm(scores.softmax(dim=-1), values)
    return mixed.view(shared, rows, -1, size).transpose(0, 1).reshape(rows, heads * size)


# ----------------------------------------------------------------------------------------------- while learning


@dataclass(frozen=True)
class KeysValues:
    """Keys, rotated, and values of some rows, (…, kv_heads, head_dim) each."""

    keys: Tensor
    values: Tensor


def side_by_side(steps: Sequence[KeysValues], text: KeysValues) -> KeysValues:
    """(B, A, M, …) rows of groups, from M steps with a row at every place each, (B, A, …), as the text has them."""
    keys = [text.keys[:, :, None][:, :, :0], *(step.keys[:, :, None] for step in steps)]
    values = [text.values[:, :, None][:, :, :0], *(step.values[:, :, None] for step in steps)]
    return KeysValues(torch.cat(keys, dim=2), torch.cat(values, dim=2))


def attend_in_groups(queries: Tensor, text: KeysValues, own: KeysValues, sees: Tensor, back: int = 0) -> Tensor:
    """(B, A, G, heads · head_dim): each group sees the text's entries up to its place, and rows of its own.

    No group sees rows of another, so each gets what it would get alone behind its part of the text.

    Args:
        queries: (B, A, G, heads, head_dim), those of the groups at the last A places.
        text: (B, S, …), an entry at every place.
        own: (B, A, M, …), further rows of every group.
        sees: (G, M) bool, which of them each query sees.
        back: the group at place t sees the entries up to t − `back`.
    """
    (batch, places, group, heads, size), (_, entries, kv_heads, _) = queries.shape, text.keys.shape
    grouped = queries.reshape(batch, places, group, kv_heads, heads // kv_heads, size) / size**0.5
    ahead = torch.ones(places, entries, dtype=torch.bool, device=queries.device).triu(1 - back + entries - places)
    before = torch.einsum("bamhge,bthe->bhgmat", grouped, text.keys).masked_fill(ahead, -torch.inf)
    inside = torch.einsum("bamhge,bakhe->bhgmak", grouped, own.keys)
    inside = inside.masked_fill(~sees[:, None], -torch.inf)
    weights = torch.cat([before, inside], dim=-1).softmax(dim=-1)
    mixed = torch.einsum("bhgmat,bthe->bamhge", weights[..., :entries], text.values)
    mixed = mixed + torch.einsum("bhgmak,bakhe->bamhge", weights[..., entries:], own.values)
    return mixed.reshape(batch, places, group, heads * size)
