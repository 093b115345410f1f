"""What a draft model holds likeliest after the nodes it read, on the host."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from specchat.core.candidate_penalties import penalised_candidates
from specchat.core.context import Context
from specchat.core.reading import Reading
from specchat.core.tree import Guess, TokenTree, point
from specchat.drafters.point_guesses import Scores, Tokens


class LikeliestTokens(NamedTuple):
    """(C,) tokens, the likeliest first, their log-probabilities, and what makes logits of these."""

    tokens: Tokens
    logprobs: Scores
    total: float

    @property
    def best(self) -> int:
        """The likeliest token."""
        return int(self.tokens[0])

    def points(self, width: int, proposer: str) -> list[Guess]:
        """The likeliest tokens as points, without those that cannot be."""
        best = zip(self.tokens[:width].tolist(), self.logprobs[:width].tolist(), strict=True)
        return [point(token, logprob, proposer) for token, logprob in best if logprob > -math.inf]

    def pairs(self) -> list[tuple[int, float]]:
        """Each token with its log-probability."""
        return list(zip(self.tokens.tolist(), self.logprobs.tolist(), strict=True))


def likeliest_tokens_of(reading: Reading, count: int) -> list[LikeliestTokens]:
    """For each node that was read its `count` likeliest tokens. One copy to the host each for tokens and values."""
    nodes, logits = reading.nodes, reading.logits
    totals_of = reading.totals_after(nodes) if reading.totals is None else reading.totals
    named, highest = reading.likeliest, reading.highest
    if named is not None and highest is not None and (named.shape[1] >= count or reading.tokens is not None):
        # numpy alone: after a pass torch's own code has left the caches, and every call of it takes tens of µs.
        best: Tokens = named.cpu().numpy()[:, :count]
        values = highest.cpu().numpy()[:, :count].astype(np.float64)
    else:
        found = torch.tensor(reading.best_after(nodes, min(count, logits.shape[1])))
        best = found.numpy()
        values = logits.gather(1, found.to(logits.device)).double().cpu().numpy()
    totals = totals_of.cpu().numpy().astype(np.float64)
    return [LikeliestTokens(*row) for row in zip(best, values - totals[:, None], totals.tolist(), strict=True)]


def penalised_likeliest_tokens(
    tree: TokenTree, nodes: Sequence[int], said: Sequence[LikeliestTokens], context: Context
) -> tuple[Tokens, Scores]:
    """(F, C) each: the likeliest tokens after these nodes by the chat's penalties, and their log-probabilities."""
    return penalised_candidates(
        np.stack([one.tokens for one in said]),
        np.stack([one.logprobs for one in said]),
        np.array([one.total for one in said]),
        context.sampling,
        context.counts,
        [tree.path_tokens(node) for node in nodes],
    )
