"""Penalties for a few candidates alone, on the host: all that guessing needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from specchat.core.sampling import Counts, Sampling

Tokens = np.ndarray[Any, np.dtype[np.int32 | np.int64]]
Scores = np.ndarray[Any, np.dtype[np.float64]]


def penalised_candidates(
    tokens: Tokens,
    logprobs: Scores,
    logsumexp: Scores,
    sampling: Sampling,
    counts: Counts,
    paths: Sequence[Sequence[int]],
) -> tuple[Tokens, Scores]:
    """Candidates after penalties, the likeliest first, and their log-probabilities.

    Penalties are assumed not to change tokens that are not candidates.

    Args:
        tokens, logprobs: (n, C) candidates, and their log-probabilities before penalties.
        logsumexp: (n,) what is added to a row's log-probabilities to make logits of them.
        counts: what the text holds.
        paths: n times the tokens drafted since the text ended, down to the node that the row follows.

    Returns:
        Two arrays (n, C).
    """
    amounts = np.array([counts.often(row, path) for row, path in zip(tokens.tolist(), paths, strict=True)])
    changed = penalised_logits(logprobs + logsumexp[:, None], amounts, sampling) - logsumexp[:, None]
    mass = 1.0 + (np.exp(changed) - np.exp(logprobs)).sum(axis=1, keepdims=True)
    changed -= np.log(np.maximum(mass, 1e-9))
    order = np.argsort(-changed, axis=1, kind="stable")
    return np.take_along_axis(tokens, order, axis=1), np.take_along_axis(changed, order, axis=1)


def penalised_logits(logits: Scores, amounts: Scores, sampling: Sampling) -> Scores:
    """The logits after penalties.

    Args:
        logits: of any tokens, any shape.
        amounts: how often the text's reply and the path hold each token; −1 where not even the prompt does.
    """
    seen = logits
    if (factor := sampling.repetition_penalty) != 1.0:
        seen = np.where(seen > 0, seen / factor, seen * factor)
    taken = sampling.presence_penalty + sampling.frequency_penalty * amounts
    seen = np.where(amounts > 0, seen - taken, seen)
    return np.where(amounts < 0, logits, seen)
