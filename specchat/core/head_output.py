"""The output of a network's head for some rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from specchat.core.record import record

LogProbabilities = Callable[[Sequence[int], Sequence[int]], list[float]]
"""(n,) rows, and of each a token → (n,) what its logits give the token; tokens of one row stand side by side."""


@record
class HeadOutput:
    """Logits, and what the head computed on the way to them.

    Args:
        logits: (n, V), or (n, R) where the head has rows for some tokens only.
        likeliest: (n, K) tokens with the highest logits, best first, where they are found on the way.
        totals: (n,) logarithm of the sum of the exponentials of the logits, likewise.
        highest: (n, K) the logits of `likeliest`, likewise.
        tokens: (R,) int64, the token of each column; None where all tokens have one.
        first: (n,) the first of `likeliest` for each row as plain numbers, where they lie on the host.
        log_probabilities: reads some of them off the logits faster than torch, where there is such a way.
    """

    logits: Tensor
    likeliest: Tensor | None = None
    totals: Tensor | None = None
    highest: Tensor | None = None
    tokens: Tensor | None = None
    first: Sequence[int] | None = None
    log_probabilities: LogProbabilities | None = None
