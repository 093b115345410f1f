"""Room for what the compiled kernels' head says of some rows."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

BEST = 64
"""How many of the highest logits of a row the head names; best.h has the same number."""

_NONE_NAMED = array("i", bytes(4 * BEST))


class ReadsLogProbabilities(Protocol):
    """Reads logarithms of probabilities off logits."""

    def __call__(self, said: HeadRoom, rows: Sequence[int], tokens: Sequence[int]) -> list[float]:
        """(n,) rows, and of each a token → (n,) what its logits give the token; see `Kernels.logprobs`."""


class HeadRoom:
    """Room for what a head says of some rows: a `HeadOutput` whose likeliest tokens become a tensor if it is asked for.

    Between two passes nothing is in the processor's caches, and a view that torch makes takes as long as judging.

    Attributes:
        logits: (rows, V) float32.
        rows, width: of the logits.
        totals, highest: where asked for.
        addresses: of logits, of (rows, BEST) int32 places of the highest, of their (rows, BEST) float32 logits and of
            the (rows,) totals, as C takes them.
    """

    tokens = None

    def __init__(
        self, rows: int, width: int, reads: ReadsLogProbabilities, *, highest: bool = False, totals: bool = False
    ) -> None:
        self.logits, self.rows, self.width = torch.empty(rows, width), rows, width
        self._best, self._reads = _NONE_NAMED * rows, reads  # read sooner than a tensor
        self._highest = torch.empty(rows, BEST) if highest else None
        self.totals = torch.empty(rows) if totals else None
        self.addresses = (
            *(self.logits.data_ptr(), self._best.buffer_info()[0]),
            None if self._highest is None else self._highest.data_ptr(),
            None if self.totals is None else self.totals.data_ptr(),
        )

    @property
    def likeliest(self) -> Tensor:
        """(rows, K) tokens with the highest logits: BEST, or as many as there are."""
        if not self.rows:
            return torch.empty(0, min(BEST, self.width), dtype=torch.int32)
        return torch.frombuffer(self._best, dtype=torch.int32).view(self.rows, BEST)[:, : self.width]

    @property
    def highest(self) -> Tensor | None:
        """(rows, K) their logits."""
        return None if self._highest is None else self._highest[:, : self.width]

    @property
    def first(self) -> Sequence[int]:
        """(rows,) the first of `likeliest`."""
        return self._best[::BEST]

    def log_probabilities(self, rows: Sequence[int], tokens: Sequence[int]) -> list[float]:
        """(n,) rows, and of each a token → (n,) what its logits give the token."""
        return self._reads(self, rows, tokens)
