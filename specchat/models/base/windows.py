"""Sliding windows: of the rows that a row could see, only the most recent of its text."""

from __future__ import annotations

import torch
from torch import Tensor

from specchat.models.base.cache_rows import Plan


def windowed(plan: Plan, window: int | None) -> Tensor:
    """(rows, seen) bool, whom each row of a pass attends to where layers see so many tokens back; None for all.

    Rows of a text that was borrowed in part lie side by side though their tokens do not: there positions decide.
    """
    if window is None:
        return plan.mask
    mask = within_window(plan.mask, plan.common, window)
    if plan.borrowed:
        behind = torch.tensor(plan.positions)[:, None] - torch.tensor(plan.borrowed)
        if bool((behind >= window).any()):
            mask = mask.clone()
            mask[:, : len(plan.borrowed)] &= behind < window
    return mask


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
