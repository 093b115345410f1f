"""Adds what a token says to a running state."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specchat.models.draft_heads.shared_weights import rms_normalize


class TokenAttention(nn.Module):
    """Attention of a state to one token: each head adds the token's value as far as its key lies along the query.

    With a single key a softmax would be 1 whatever the query, so the weight is the cosine of query and key.
    """

    def __init__(self, hidden: int, heads: int, epsilon: float) -> None:
        """`heads` divides the width `hidden`."""
        super().__init__()
        self._heads, self._epsilon = heads, epsilon
        self.state_norm = nn.Parameter(torch.ones(hidden))
        self.q = nn.Linear(hidden, hidden, bias=False)
        self.kv = nn.Linear(hidden, 2 * hidden, bias=False)

    def forward(self, states: Tensor, tokens: Tensor) -> Tensor:
        """(…, d) states with the tokens (…, d) added; a token of zeros adds nothing."""
        queries = self.q(rms_normalize(states, self._epsilon) * self.state_norm).unflatten(-1, (self._heads, -1))
        keys, values = self.kv(tokens).unflatten(-1, (2 * self._heads, -1)).chunk(2, dim=-2)
        weights = F.cosine_similarity(queries, keys, dim=-1).unsqueeze(-1)
        added: Tensor = (weights * values).flatten(-2)
        return states + added
