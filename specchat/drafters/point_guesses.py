"""Points from what a draft network holds likely: its likeliest tokens, or those that win with the target's noise."""

from __future__ import annotations

import bisect
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from specchat.core.context import Context
from specchat.core.noise import Stream
from specchat.core.point_rows import PointRows
from specchat.core.sampling import Sampling

_SURENESS = 0.5
"""Temperature of the noisy scores at which their softmax says how often a coupled draw agrees with the target. In a
simulation with 2000 tokens and drafts of three qualities it said 0.76 where 0.90, 0.77 and 0.63 agreed.
network_guesses.h has this number and the next."""

_HOPELESS = 9.0
"""Tokens whose score is lower than the best by more win once in 8000 times: not worth their noise."""

Tokens = np.ndarray[Any, np.dtype[np.int32 | np.int64]]
Scores = np.ndarray[Any, np.dtype[np.float64]]


def coupled(tokens: Tokens, logprobs: Scores, positions: Sequence[int], context: Context) -> tuple[Tokens, Scores]:
    """The tokens in the order in which they win with the target's own noise, and how likely the target agrees.

    That is about how far ahead they won, not about q: a softmax over the noisy scores. Only likely tokens compete: the
    noise of a whole vocabulary takes longer than a small model's pass. Truncation is that of the target's law, as far
    as it can be told from them. Row by row without tensors: few tokens survive, and torch takes longer to get going.
    """
    ordered, chances = np.empty_like(tokens), np.full(tokens.shape, -np.inf)
    scores = (logprobs / context.sampling.temperature).tolist()
    for row, (named, each, position) in enumerate(zip(tokens.tolist(), scores, positions, strict=True)):
        count = _competing(each, context.sampling)
        noise = context.noise.gumbel_of_few(Stream.TARGET, position, named[:count])
        noisy = [score + more for score, more in zip(each, noise, strict=False)]
        order = sorted(range(count), key=lambda at: -noisy[at])
        most = noisy[order[0]]
        weights = [math.exp((noisy[at] - most) / _SURENESS) for at in order]
        total = math.log(math.fsum(weights))
        ordered[row] = [*(named[at] for at in order), *named[count:]]
        chances[row, :count] = [(noisy[at] - most) / _SURENESS - total for at in order]
    return ordered, chances


def _competing(scores: Sequence[float], sampling: Sampling) -> int:
    """How many of some scores, the best first, survive truncation and have a chance of winning.

    See `core.truncation`: tokens of equal scores survive together. Probabilities are those among these scores.
    """
    least = scores[0] - _HOPELESS
    if top_k := sampling.top_k_of(len(scores)):
        least = max(least, scores[top_k - 1])
    if sampling.min_p > 0.0:
        least = max(least, scores[0] + math.log(sampling.min_p))
    if sampling.top_p < 1.0:
        among = scores[: bisect.bisect_right(scores, -scores[top_k - 1], key=operator.neg)] if top_k else scores
        weights = [math.exp(score - scores[0]) for score in among]
        wanted, mass = sampling.top_p * math.fsum(weights), 0.0
        for score, weight in zip(among, weights, strict=True):
            mass += weight
            if mass >= wanted:
                least = max(least, score)
                break
    return bisect.bisect_right(scores, -least, key=operator.neg)


def points_of(tokens: Tokens, logprobs: Scores, width: int, proposer: str) -> PointRows:
    """For each node its first `width` tokens as points, the best first; those that cannot be are left out."""
    return PointRows(tokens[:, :width].tolist(), logprobs[:, :width].tolist(), None, proposer)
