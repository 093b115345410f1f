"""The target's token where the likeliest are known: the same that a draw among all would give, for a fraction of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from specchat.core.best import best_token
from specchat.core.noise import Noise, Stream
from specchat.core.sampling import Sampling


def draw_among(logits: Tensor, likeliest: Sequence[int], sampling: Sampling, noise: Noise, position: int) -> int | None:
    """The token that `law(logits, sampling).draw(noise, Stream.TARGET, position)` gives; None where this cannot tell.

    Truncation leaves few tokens, almost always some of the likeliest. Without it any token may win, but one that is
    none of the likeliest needs more noise than the difference between the best noisy score among them and the score of
    the last of them; which tokens have that much can be told without computing anybody's noise.

    Args:
        logits: (V,) raw; no penalty is in force, and the temperature is above 0.
        likeliest: tokens with the highest logits, best first.
    """
    ids = torch.tensor(likeliest)
    scores = logits[ids].float() / sampling.temperature
    top_k = sampling.top_k if sampling.top_k < logits.numel() else 0
    if top_k > len(ids):
        return None
    complete = top_k > 0 or len(ids) == logits.numel()
    if top_k > 0:
        ids, scores = ids[:top_k], scores[:top_k]
    if sampling.top_p < 1.0:
        among = scores if complete else logits.float() / sampling.temperature
        mass = (scores.double() - torch.logsumexp(among, dim=-1)).exp().cumsum(dim=-1)
        if not complete and float(mass[-1]) < sampling.top_p:
            return None
        count = 1 + int((mass[:-1] < sampling.top_p).sum())
        ids, scores, complete = ids[:count], scores[:count], True
    if sampling.min_p > 0.0:
        keep = scores >= scores.max() + math.log(sampling.min_p)
        if not complete and bool(keep[-1]):
            return None
        ids, scores, complete = ids[keep], scores[keep], True
    noisy = scores.double() + noise.gumbel(Stream.TARGET, position, ids)
    best = best_token(noisy)
    if complete:
        return int(ids[best])
    return _best_of_all(logits, sampling.temperature, noise, position, (int(ids[best]), float(noisy[best])), scores[-1])


def _best_of_all(
    logits: Tensor, temperature: float, noise: Noise, position: int, winner: tuple[int, float], last: Tensor
) -> int:
    """The winner among the likeliest, or whoever beats it by noise alone.

    Args:
        winner: its token and noisy score.
        last: the score that no other token exceeds.
    """
    token, score = winner
    lucky = noise.above(Stream.TARGET, position, logits.numel(), score - float(last))
    if not lucky.numel():
        return token
    noisy = (logits[lucky].float() / temperature).double() + noise.gumbel(Stream.TARGET, position, lucky)
    best = best_token(noisy)
    return int(lucky[best]) if float(noisy[best]) > score else token
