"""The head of a trained network while it drafts: its frequent tokens, and those of the text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from specchat.core.seams import Weights
from specchat.core.top_tokens import best_tokens
from specchat.core.trained_network import Guessed
from specchat.models.base.head_output import HeadOutput
from specchat.models.learned.shared_weights import SharedWeights, unit

_MOST_ADDED = 1024
"""Tokens of texts that are kept besides the frequent ones; then they are forgotten, but for those of the text."""


class HeadProduct(Protocol):
    """A norm and rows of a head, which may grow."""

    def append(self, rows: Tensor) -> None:
        """Add rows, (n, d) float32."""

    def scores(self, states: Tensor) -> HeadOutput:
        """Everything that can be said of (n, d) states; tokens are places among the rows."""


class TorchHead:
    """A norm and a head as torch computes them."""

    _BEST = 64

    def __init__(self, norm: Tensor, epsilon: float) -> None:
        self._norm, self._epsilon = norm, epsilon
        self._rows = torch.empty(0, len(norm))

    def append(self, rows: Tensor) -> None:
        self._rows = torch.cat([self._rows, rows])

    def scores(self, states: Tensor) -> HeadOutput:
        logits = F.linear(unit(states, self._epsilon) * self._norm, self._rows)
        highest, places = best_tokens(logits, min(self._BEST, logits.shape[1]))
        return HeadOutput(logits, places, logits.logsumexp(dim=-1), highest)


class TrimmedHead:
    """Rows of the target's head for the tokens that texts use most, and for those of the text being written.

    Attributes:
        product: computes it.
        tokens: (R,) int64, the token of each row.
    """

    def __init__(self, product: Callable[[], HeadProduct], shared: SharedWeights, target: Weights | None) -> None:
        """The frequent tokens.

        Args:
            product: makes an empty head.
            shared: names the frequent tokens and their rows.
            target: whose head further tokens are read from; None for a head that cannot grow.
        """
        self._make, self._target, self._shared = product, target, shared
        self.product = self._frequent_rows()
        self.tokens = shared.tokens
        self._known = set(shared.tokens.tolist())

    def add(self, tokens: Sequence[int]) -> None:
        """Let these tokens be guessed too."""
        if self._target is None:
            return
        new = [token for token in dict.fromkeys(tokens) if token not in self._known]
        if not new:
            return
        frequent = self._shared.tokens
        if len(self._known) + len(new) > len(frequent) + _MOST_ADDED:
            self.product, self.tokens, self._known = self._frequent_rows(), frequent, set(frequent.tolist())
            new = [token for token in dict.fromkeys(tokens) if token not in self._known][-_MOST_ADDED:]
        self.product.append(self._target.head_rows(new))
        self._known.update(new)
        self.tokens = torch.cat([self.tokens, torch.tensor(new)])

    def guessed(self, states: Tensor) -> Guessed:
        """What follows (n, d) states."""
        said = self.product.scores(states)
        assert said.likeliest is not None, "every head that guesses names the likeliest"
        assert said.highest is not None, "and their logits"
        assert said.totals is not None, "and what makes log-probabilities of them"
        totals = said.totals.numpy()
        logprobs = said.highest.numpy().astype(np.float64) - totals[:, None]
        tokens = self.tokens.numpy()
        return Guessed(tokens[said.likeliest.numpy()], logprobs, tokens, totals, lambda: said.logits)

    def _frequent_rows(self) -> HeadProduct:
        product = self._make()
        product.append(self._shared.head)
        return product
