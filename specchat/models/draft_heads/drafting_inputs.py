"""What all trained networks draft with: the text's states, tokens, and the head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from specchat.core.drafting_networks import Guessed
from specchat.core.states import TextStates
from specchat.models.decoder.trimmed_head import TrimmedHead
from specchat.models.draft_heads.text_inputs import TextInputs
from specchat.models.draft_heads.token_inputs import TokenInputs


@dataclass(frozen=True)
class DraftingInputs:
    """What a trained network takes of text and tokens, and its head.

    Args:
        threads: with how many the compiled kernels may draft, if they belong to the target's own team.
    """

    text: TextInputs
    tokens: TokenInputs
    head: TrimmedHead[Tensor]
    threads: int = 1

    def take(self, states: TextStates) -> None:
        """States of the text. Its tokens can be guessed soon."""
        self.text.take(states)
        self.head.add_later(states.tokens)

    def skip(self, first: int, tokens: Sequence[int]) -> None:
        """Tokens whose states do not come. They can be guessed all the same, soon."""
        self.text.skip(first, tokens)
        self.head.add_later(tokens)

    def guessed(self, states: Tensor) -> Guessed:
        """What follows (n, d) states."""
        said = self.head.after(states)
        assert said.likeliest is not None, "every head that guesses names the likeliest"
        assert said.highest is not None, "and their logits"
        assert said.totals is not None, "and what makes log-probabilities of them"
        totals, logits = said.totals.numpy(), said.logits
        logprobs = said.highest.numpy().astype(np.float64) - totals[:, None]
        return Guessed(said.likeliest.numpy(), logprobs, self.head.tokens.numpy(), totals, lambda: logits)

    def complete(self, history: Sequence[int]) -> bool:
        """Whether this text but its last token is known, and the state of the last but one. The last can be guessed
        too, soon."""
        self.head.add_later(history[-1:])
        return len(history) > 1 and self.text.cover(history, len(history) - 1)
