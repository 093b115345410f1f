"""Copies between host and device that do not wait, and the one function that does."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def to_device(host: Tensor, device: torch.device) -> Tensor:
    """The same values, of any shape (…,), on a device.

    A copy from pageable memory waits until the device has done everything before it. A copy from pinned memory does
    not; torch's allocator lends the pinned block out again only once the copy is done.
    """
    if device.type == "cuda":
        return host.pin_memory().to(device, non_blocking=True)
    return host.to(device)


def synchronize(device: torch.device) -> None:
    """Synchronise: return once the device has done all it was given, so that a clock can be read."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def rows_of(states: Tensor, rows: Sequence[int]) -> Tensor:
    """(n, …) copies of these rows of (m, …). On the host by numpy, which is done before torch gets going."""
    if states.device.type == "cpu" and states.dtype == torch.float32:
        return torch.from_numpy(states.numpy().take(rows, axis=0))
    return states[to_device(torch.tensor(rows, dtype=torch.int64), states.device)]
