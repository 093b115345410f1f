"""What a trained network shares with its target: the embedding, and rows of the head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from specchat.core.seams import Weights
from specchat.errors import ModelError


@dataclass(frozen=True)
class SharedWeights:
    """The target's frozen weights as a trained network uses them.

    Args:
        embed: int64 tokens (…) → (…, d) what the target's first layer gets for them.
        tokens: (H,) int64, the tokens that can be guessed, those first that texts use most: a drafter may take only
            the first of them.
        head: (H, d) the head's rows for these tokens with the target's final norm in them (`Weights.head_rows`): what a
            state of mean square 1 is multiplied with to give their logits.
        own_head: whether the rows are not the target's, so that there are none for other tokens.
    """

    embed: Callable[[Tensor], Tensor]
    tokens: Tensor
    head: Tensor
    own_head: bool = False

    @classmethod
    def of(cls, target: Weights, tokens: Tensor) -> SharedWeights:
        """What a target shares, its head trimmed to these tokens.

        Raises:
            ModelError: a token is outside the target's vocabulary.
        """
        if int(tokens.max()) >= target.vocab_size:
            raise ModelError(f"token {int(tokens.max())} can be guessed, and the target has {target.vocab_size} tokens")

        def embed(wanted: Tensor) -> Tensor:
            unique, place = torch.unique(wanted, return_inverse=True)
            return target.embed(unique.tolist()).to(wanted.device, torch.float32)[place]

        rows = target.head_rows(tokens.tolist()).clone()  # a model's own tensors cannot take part in training
        return cls(embed, tokens, rows)

    def logits(self, normed: Tensor) -> Tensor:
        """(…, H) logits of (…, d) normed states, one for each of `tokens`."""
        return F.linear(normed, self.head)


def rms_normalize(states: Tensor, epsilon: float) -> Tensor:
    """States (…, d) brought to a mean square of 1."""
    return F.rms_norm(states, states.shape[-1:], eps=epsilon)
