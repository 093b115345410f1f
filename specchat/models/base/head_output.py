"""What a decoder's head says of some rows, and what it noticed while saying it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class HeadOutput:
    """What a head says.

    Args:
        logits: (n, V).
        likeliest: (n, K) tokens with the highest logits, best first, where they are found on the way.
        totals: (n,) logarithm of the sum of the exponentials of the logits, likewise.
    """

    logits: Tensor
    likeliest: Tensor | None = None
    totals: Tensor | None = None
