"""Attention of a few rows over many: two ways to compute the same, of which a device may do either faster."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Attention = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
"""(queries, keys, values, mask) → (rows, heads · head_dim).

Queries are (rows, heads, head_dim), keys and values (kv, seen, head_dim). Queries that share a key head are folded into
its rows: the mask, from `folded_mask`, is (rows · group, seen) and added to the scores; None hides nothing."""


def folded_mask(seen: Tensor, group: int, dtype: torch.dtype) -> Tensor:
    """(rows · group, seen) of (rows, seen) bool: row by row, the group innermost."""
    added = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, float("-inf"))
    return added[:, None].expand(-1, group, -1).reshape(-1, seen.shape[1])


def fused(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """By torch's own kernel, which cuts the work up by rows and heads."""
    folded = _folded(queries, len(keys))
    mixed = F.scaled_dot_product_attention(folded[None], keys[None], values[None], mask)
    return _unfolded(mixed[0], len(queries))


def by_products(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """By two batched products with a softmax in float32 between, which cut the work up by seen rows as well."""
    folded, turned = _folded(queries, len(keys)), keys.transpose(1, 2)
    # Scores rounded to bfloat16 would be off by a tenth where they are large.
    if folded.dtype == torch.bfloat16 and folded.device.type == "cuda":
        scores = torch.bmm(folded, turned, out_dtype=torch.float32)
    else:
        scores = torch.bmm(folded.float(), turned.float())
    scores.mul_(queries.shape[-1] ** -0.5)
    if mask is not None:
        scores.add_(mask)
    mixed = torch.bmm(torch.softmax(scores, dim=-1, dtype=torch.float32).to(values.dtype), values)
    return _unfolded(mixed, len(queries))


def _folded(queries: Tensor, kv: int) -> Tensor:
    """(kv, rows · group, head_dim)."""
    rows, _, head_dim = queries.shape
    return queries.reshape(rows, kv, -1, head_dim).transpose(0, 1).reshape(kv, -1, head_dim)


def _unfolded(mixed: Tensor, rows: int) -> Tensor:
    kv, _, head_dim = mixed.shape
    return mixed.view(kv, rows, -1, head_dim).transpose(0, 1).reshape(rows, -1)
