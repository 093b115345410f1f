"""Attention while a network learns: a group of rows at every place of some texts, all groups at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class KeysValues:
    """What rows are attended to by.

    Args:
        keys, values: (…, kv_heads, head_dim), keys rotated.
    """

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
        queries: (B, A, G, heads, head_dim), those of the group at every place.
        text: (B, A, …), an entry at every place.
        own: (B, A, M, …), further rows of every group.
        sees: (G, M) bool, which of them each query sees.
        back: the group at place t sees the entries up to t − `back`.
    """
    (batch, places, group, heads, size), kv_heads = queries.shape, text.keys.shape[-2]
    grouped = queries.reshape(batch, places, group, kv_heads, heads // kv_heads, size) / size**0.5
    ahead = torch.ones(places, places, dtype=torch.bool, device=queries.device).triu(1 - back)
    before = torch.einsum("bamhge,bthe->bhgmat", grouped, text.keys).masked_fill(ahead, -torch.inf)
    inside = torch.einsum("bamhge,bakhe->bhgmak", grouped, own.keys)
    inside = inside.masked_fill(~sees[:, None], -torch.inf)
    weights = torch.cat([before, inside], dim=-1).softmax(dim=-1)
    mixed = torch.einsum("bhgmat,bthe->bamhge", weights[..., :places], text.values)
    mixed = mixed + torch.einsum("bhgmak,bakhe->bamhge", weights[..., places:], own.values)
    return mixed.reshape(batch, places, group, heads * size)
