"""Points from what a draft network holds likely: its likeliest tokens, or those that win with the target's noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from specchat.core.context import Context
from specchat.core.noise import Stream
from specchat.core.sampling import total_of
from specchat.core.seams import Proposal
from specchat.core.tree import Guess
from specchat.core.truncation import truncate

_SURENESS = 0.5
"""Temperature of the noisy scores at which their softmax says how often a coupled draw agrees with the target. In a
simulation with 2000 tokens and drafts of three qualities it said 0.76 where 0.90, 0.77 and 0.63 agreed."""

Tokens = np.ndarray[Any, np.dtype[np.int32 | np.int64]]
Scores = np.ndarray[Any, np.dtype[np.float64]]


def coupled(tokens: Tokens, logprobs: Scores, positions: Sequence[int], context: Context) -> tuple[Tokens, Scores]:
    """The tokens in the order in which they win with the target's own noise, and how likely the target agrees.

    That is about how far ahead they won, not about q: a softmax over the noisy scores. Only likely tokens compete: the
    noise of a whole vocabulary takes longer than a small model's pass. Truncation is that of the target's law, as far
    as it can be told from them.
    """
    sampling, count = context.sampling, tokens.shape[1]
    likely = torch.from_numpy(logprobs) / sampling.temperature
    if sampling.truncates(count):
        found = truncate(likely, sampling, count, lambda: total_of(likely))
        likely.masked_fill_(likely < found.least, -torch.inf)
    scores: Scores = likely.numpy()
    scores += context.noise.gumbels(Stream.TARGET, positions, torch.from_numpy(tokens).long()).numpy()
    order = np.argsort(-scores, axis=1, kind="stable")
    scores = np.take_along_axis(scores, order, axis=1) / _SURENESS
    return np.take_along_axis(tokens, order, axis=1), scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)


def points_of(tokens: Tokens, logprobs: Scores, width: int, proposer: str) -> Proposal:
    """For each node its first `width` tokens as points, the best first; those that cannot be are left out."""
    rows = zip(tokens[:, :width].tolist(), logprobs[:, :width].tolist(), strict=True)
    return [
        [
            Guess(token, logprob=logprob, proposer=proposer)
            for token, logprob in zip(*row, strict=True)
            if logprob > -math.inf
        ]
        for row in rows
    ]
