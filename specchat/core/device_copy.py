"""Copies between host and device that do not wait, and the one function that does."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


def to_device(host: Tensor, device: torch.device) -> Tensor:
    """The same values, of any shape (…,), on a device; themselves where they are there.

    A copy from pageable memory waits until the device has done everything before it. A copy from pinned memory does
    not; torch's allocator lends the pinned block out again only once the copy is done.
    """
    if device.type == "cuda" and host.is_cpu:
        return host.pin_memory().to(device, non_blocking=True)
    return host.to(device)


def drawable(logits: Tensor) -> Tensor:
    """(n, V) logits where float64 decides draws: on the host for MPS, which has no float64 and shares its memory."""
    return logits.cpu() if logits.device.type == "mps" else logits


def synchronize(device: torch.device) -> None:
    """Synchronise: return once the device has done all it was given, so that a clock can be read."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def to_host(*tensors: Tensor) -> list[np.ndarray[Any, np.dtype[Any]]]:
    """The same values on the host, each in its own format: one copy for all of them. What is there already is shared.

    The tensors are in formats that numpy has.
    """
    if all(tensor.device.type == "cpu" for tensor in tensors):
        return [tensor.numpy() for tensor in tensors]
    # The widest first, so that each begins at a multiple of its own width.
    order = sorted(range(len(tensors)), key=lambda at: -tensors[at].element_size())
    packed = [tensors[at].contiguous().flatten().view(torch.uint8) for at in order]
    copied = torch.cat(packed).cpu().numpy()
    ends = list(itertools.accumulate((len(part) for part in packed), initial=0))
    found: dict[int, np.ndarray[Any, np.dtype[Any]]] = {
        at: copied[first:end].view(_FORMATS[tensors[at].dtype]).reshape(tensors[at].shape)
        for at, first, end in zip(order, ends, ends[1:], strict=False)
    }
    return [found[at] for at in range(len(tensors))]


_FORMATS = {
    torch.float64: np.float64,
    torch.float32: np.float32,
    torch.int64: np.int64,
    torch.int32: np.int32,
    torch.bool: np.bool_,
}


def picked(values: Tensor, rows: Sequence[int], *columns: Sequence[int]) -> Tensor:
    """(n, …) `values[rows]`, or `values[rows, columns]`, of (m, …) values, without waiting for the device."""
    return values[tuple(to_device(torch.tensor(part, dtype=torch.int64), values.device) for part in (rows, *columns))]


def rows_of(states: Tensor, rows: Sequence[int]) -> Tensor:
    """(n, …) copies of these rows of (m, …). On the host by numpy, which is done before torch gets going."""
    if states.device.type == "cpu" and states.dtype == torch.float32:
        return torch.from_numpy(states.numpy().take(rows, axis=0))
    return picked(states, rows)
