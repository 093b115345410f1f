"""Sliding windows: which of the rows that a row sees are the last so many of its text."""

from __future__ import annotations

import torch
from torch import Tensor


def within_window(mask: Tensor, common: int, window: int) -> Tensor:
    """The same mask, each row's older rows left out; the mask itself where no text is longer.

    A row sees its text in order, and nothing else: the last `window` of the rows it sees are the last of its text,
    wherever in the cache they lie.

    Args:
        mask: (rows, seen) bool, whom each row attends to.
        common: the first so many rows are attended to by all.
        window: rows that one attends to, itself included.
    """
    if mask.shape[1] <= window:
        return mask
    behind = mask[:, common:]
    last = behind.flip(1).cumsum(1, dtype=torch.int32).flip(1) <= window
    first = common + behind.sum(1, dtype=torch.int32) - window
    before = torch.arange(common, device=mask.device) >= first[:, None]
    return torch.cat([before, behind & last], dim=1)
