"""Top-k, top-p and min-p as one number: the least score with which a token survives them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from specchat.core.sampling import Sampling


@dataclass(frozen=True)
class Truncation:
    """What survives in n rows of scores. Tokens of equal scores survive together, so their order decides nothing.

    Args:
        least: (n, 1) a token survives if its score is this or more.
        known: (n,) bool, whether the tokens looked at were enough to tell.
    """

    least: Tensor
    known: Tensor


def truncate(best: Tensor, sampling: Sampling, vocab_size: int, total: Callable[[], Tensor]) -> Truncation:
    """Truncate rows of which only the highest scores are looked at. Does not wait for the device.

    Args:
        best: (n, C) the highest scores (logits over temperature), best first; C may be V.
        total: () → (n, 1) logarithm of the sum of the exponentials of all V scores; asked for only where top-p
            needs it.
    """
    top_k, count = sampling.top_k_of(vocab_size), best.shape[1]
    known = torch.ones(len(best), dtype=torch.bool, device=best.device)
    if top_k > count:
        return Truncation(torch.full_like(best[:, :1], -torch.inf), ~known)
    least = best[:, top_k - 1 : top_k] if top_k else None
    if sampling.top_p < 1.0:
        if least is not None:
            known = best[:, -1] < least[:, 0]  # else there may be more that equal the last
            mass_of_all = torch.logsumexp(best.masked_fill(best < least, -torch.inf), dim=-1, keepdim=True)
        else:
            mass_of_all = total()
        mass = (best.double() - mass_of_all).exp().cumsum(dim=-1)
        known = known & (mass[:, -1] >= sampling.top_p) | (count == vocab_size)
        least = _higher(best.gather(1, (mass[:, :-1] < sampling.top_p).sum(dim=-1, keepdim=True)), least)
    if sampling.min_p > 0.0:
        least = _higher(best[:, :1] + math.log(sampling.min_p), least)
    assert least is not None, "asked for only where something truncates"
    return Truncation(least, known)


def _higher(first: Tensor, second: Tensor | None) -> Tensor:
    return first if second is None else torch.maximum(first, second)
