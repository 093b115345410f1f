"""Allocates weights one after another in a few large blocks of memory."""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from specchat.models.decoder.kv_cache import zeroed_bytes

_PIECE = 64 << 20
_LINE = 64


class Arena:
    """Gives out memory for tensors, one behind another. It lives as long as what was given out is used."""

    def __init__(self) -> None:
        self._piece = torch.empty(0, dtype=torch.uint8)
        self._used = 0
        self._lock = threading.Lock()

    def room(self, size: int) -> Tensor:
        """(size,) uint8, zeros, on a cache line's boundary. Safe from several threads."""
        with self._lock:
            if self._used + size > len(self._piece):
                self._piece, self._used = zeroed_bytes(max(_PIECE, size)), 0
            given = self._piece[self._used : self._used + size]
            self._used += -(-size // _LINE) * _LINE
        return given
