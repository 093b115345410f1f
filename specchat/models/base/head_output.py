"""The output of a decoder's head for some rows."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class HeadOutput:
    """Logits, and what the head computed on the way to them.

    Args:
        logits: (n, V).
        likeliest: (n, K) tokens with the highest logits, best first, where they are found on the way.
        totals: (n,) logarithm of the sum of the exponentials of the logits, likewise.
        highest: (n, K) the logits of `likeliest`, likewise.
    """

    logits: Tensor
    likeliest: Tensor | None = None
    totals: Tensor | None = None
    highest: Tensor | None = None
