"""Small tensors from the host to a device, without waiting for the device."""

from __future__ import annotations

import torch
from torch import Tensor


def sent(host: Tensor, device: torch.device) -> Tensor:
    """The same values on a device.

    A copy from pageable memory waits until the device has done everything before it. A copy from pinned memory does
    not; torch's allocator lends the pinned block out again only once the copy is done.
    """
    if device.type == "cuda":
        return host.pin_memory().to(device, non_blocking=True)
    return host.to(device)
