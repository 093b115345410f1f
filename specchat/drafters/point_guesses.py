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
from specchat.core.sampling import Sampling
from specchat.core.tree import DrawKind, PointRows

_HOPELESS = 9.0
"""Tokens whose score is lower than the best by more win once in 8000 times: not worth their noise.
network_guesses.h has the same number."""

Tokens = np.ndarray[Any, np.dtype[np.int32 | np.int64]]
Scores = np.ndarray[Any, np.dtype[np.float64]]


def coupled(tokens: Tokens, logprobs: Scores, positions: Sequence[int], context: Context) -> tuple[Tokens, Scores]:
    """The tokens in the order in which they win with the target's own noise, and how likely the target agrees.

    They are in the order in which the target would draw them if its law were q. It is not: its logits differ from the
    drafter's by about as much at every temperature. So a guess claims its share in a softmax of log q + T · noise:
    the colder the chat, the less noise counts against that difference, and at temperature 0 the claim would be q.
    Tokens that truncation excludes have a share too: q cannot tell for certain which the target excludes, so a lone
    survivor is not certain. They are not guessed.
    Only likely tokens compete: the noise of a whole vocabulary takes longer than a small model's pass. Row by row
    without tensors: few tokens survive, and torch takes longer to get going.

    Where a rule weighs the probabilities of draws, noise is left out: what its trials leave is drawn with the same
    noise, so nothing that decides which draws find a place in the tree may depend on it.

    Args:
        tokens, logprobs: (n, C) tokens, the likeliest first, and log q.
        positions: n times the position whose noise decides.

    Returns:
        (n, C) tokens, and the logarithms of what they claim; −inf for those that have no chance.
    """
    if context.wanted is not DrawKind.POINT:
        return tokens, logprobs
    ordered, claims = np.empty_like(tokens), np.full(tokens.shape, -np.inf)
    temperature = context.sampling.temperature
    rows = zip(tokens.tolist(), (logprobs / temperature).tolist(), positions, strict=True)
    for row, (named, scores, position) in enumerate(rows):
        least = _least_surviving(scores, context.sampling)
        count = bisect.bisect_right(scores, _HOPELESS - scores[0], key=operator.neg)
        noise = context.noise.gumbel_of_few(Stream.TARGET, position, named[:count])
        noisy = [score + more for score, more in zip(scores, noise, strict=False)]
        total = math.log(math.fsum(math.exp(score * temperature) for score in noisy))
        surviving = bisect.bisect_right(scores, -least, hi=count, key=operator.neg)
        order = sorted(range(surviving), key=lambda at: -noisy[at])
        ordered[row] = [*(named[at] for at in order), *named[surviving:]]
        claims[row, :surviving] = [noisy[at] * temperature - total for at in order]
    return ordered, claims


def _least_surviving(scores: Sequence[float], sampling: Sampling) -> float:
    """The least of some scores, the best first, that survives truncation; −inf where all do.

    See `core.truncation`: tokens of equal scores survive together. Probabilities are those among these scores.
    """
    least = -math.inf
    if top_k := sampling.top_k_of(len(scores)):
        least = scores[top_k - 1]
    if sampling.min_p > 0.0:
        least = max(least, scores[0] + math.log(sampling.min_p))
    if sampling.top_p < 1.0:
        among = scores[: bisect.bisect_right(scores, -scores[top_k - 1], key=operator.neg)] if top_k else scores
        weights = [math.exp(score - scores[0]) for score in among]
        wanted, mass = sampling.top_p * math.fsum(weights), 0.0
        for score, weight in zip(among, weights, strict=True):
            mass += weight
            if mass >= wanted:
                return max(least, score)
    return least


def points_of(tokens: Tokens, logprobs: Scores, width: int, proposer: str) -> PointRows:
    """For each node its first `width` tokens as points, the best first; those that cannot be are left out."""
    return PointRows(tokens[:, :width].tolist(), logprobs[:, :width].tolist(), None, proposer)
