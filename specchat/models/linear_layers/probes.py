"""Which of torch's products work on this processor: each is tried out once, since torch's builds differ by platform."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from specchat.models.linear_layers.processor import Int4Linear, Int8Linear, Linear, PackedLinear
from specchat.models.weights.weight_source import GROUP, FourBit

_OUT, _IN, _ROWS = 64, 2 * GROUP, 3


@lru_cache
def int8_works() -> bool:
    """Whether weights of 8 bits can be multiplied with as the definition says."""
    return _agrees(lambda: Int8Linear(_weight(), None), _weight())


@lru_cache
def int4_works() -> bool:
    """Whether weights of 4 bits can be multiplied with as the definition says."""
    numbers = torch.arange(_OUT * _IN).view(_OUT, _IN) % 16
    scale = torch.full((_OUT, _IN // GROUP), 0.125)
    groups = FourBit(numbers.to(torch.uint8), scale, -scale)
    return _agrees(lambda: Int4Linear(groups, None), numbers * 0.125 - 0.125)


@lru_cache
def packed_works() -> bool:
    """Whether weights in bfloat16 can be laid out for this processor, and multiplied with."""
    return _agrees(lambda: PackedLinear(_weight(), None), _weight())


def _weight() -> Tensor:
    return torch.sin(torch.arange(_OUT * _IN).float()).view(_OUT, _IN)


@torch.inference_mode()
def _agrees(build: Callable[[], Linear], dense: Tensor) -> bool:
    x = torch.cos(torch.arange(_ROWS * _IN).float()).view(_ROWS, _IN)
    expected = x @ dense.t()
    try:
        found = build()(x)
    except (RuntimeError, AttributeError):  # the operation is not in this build, or not for this processor
        return False
    return found.shape == expected.shape and bool((found - expected).abs().max() < 0.05 * expected.abs().max())
