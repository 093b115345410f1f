"""What a draft model holds likeliest after the nodes it read, on the host."""

from __future__ import annotations

from typing import NamedTuple

import torch

from specchat.core.reading import Reading
from specchat.drafters.point_guesses import Scores, Tokens


class LikeliestTokens(NamedTuple):
    """(C,) tokens, the likeliest first, and their log-probabilities."""

    tokens: Tokens
    logprobs: Scores

    @property
    def best(self) -> int:
        """The likeliest token."""
        return int(self.tokens[0])

    def pairs(self) -> list[tuple[int, float]]:
        """Each token with its log-probability."""
        return list(zip(self.tokens.tolist(), self.logprobs.tolist(), strict=True))


def likeliest_tokens_of(reading: Reading, count: int) -> list[LikeliestTokens]:
    """For each node that was read its `count` likeliest tokens. One copy to the host each for tokens and values."""
    nodes, logits = reading.nodes, reading.logits
    best = torch.tensor(reading.best_after(nodes, min(count, logits.shape[1])))
    values = logits.gather(1, best.to(logits.device)).float() - reading.totals_after(nodes)[:, None]
    return [LikeliestTokens(*row) for row in zip(best.numpy(), values.cpu().double().numpy(), strict=True)]
