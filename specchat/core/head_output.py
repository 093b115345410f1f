"""The output of a network's head for some rows."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class HeadOutput:
    """Logits, and what the head computed on the way to them.

    Args:
        logits: (n, V), or (n, R) where the head has rows for some tokens only.
        likeliest: (n, K) tokens with the highest logits, best first, where they are found on the way.
        totals: (n,) logarithm of the sum of the exponentials of the logits, likewise.
        highest: (n, K) the logits of `likeliest`, likewise.
        tokens: (R,) int64, the token of each column; None where all tokens have one.
    """

    logits: Tensor
    likeliest: Tensor | None = None
    totals: Tensor | None = None
    highest: Tensor | None = None
    tokens: Tensor | None = None
