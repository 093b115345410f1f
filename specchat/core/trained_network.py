"""What a trained network says after some nodes of a tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

Tokens = np.ndarray[Any, np.dtype[np.int32 | np.int64]]
Logprobs = np.ndarray[Any, np.dtype[np.float32 | np.float64]]


@dataclass(frozen=True)
class Guessed:
    """Which tokens probably follow n nodes; on the host. It may be written over once the next tree begins.

    Args:
        tokens: (n, C) the likeliest, best first.
        logprobs: (n, C) their log-probabilities among the tokens that can be guessed.
        possible: (R,) the tokens that can be guessed.
        logits: (n, R) of all of them.
    """

    tokens: Tokens
    logprobs: Logprobs
    possible: Tokens
    logits: Tensor
