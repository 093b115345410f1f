"""What all trained networks draft with: the text's states, tokens, and the head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specchat.core.states import TextStates
from specchat.models.learned.text_inputs import TextInputs
from specchat.models.learned.token_inputs import TokenInputs
from specchat.models.learned.trimmed_head import TrimmedHead


@dataclass(frozen=True)
class DraftingInputs:
    """What a trained network takes of text and tokens, and its head.

    Args:
        threads: with how many the compiled kernels may draft, if they belong to the target's own team.
    """

    text: TextInputs
    tokens: TokenInputs
    head: TrimmedHead
    threads: int = 1

    def take(self, states: TextStates) -> None:
        """States of the text. Its tokens can be guessed from now on."""
        self.text.take(states)
        self.head.add(states.tokens)

    def skip(self, first: int, tokens: Sequence[int]) -> None:
        """Tokens whose states do not come. They can be guessed all the same."""
        self.text.skip(first, tokens)
        self.head.add(tokens)

    def complete(self, history: Sequence[int]) -> bool:
        """Whether this text but its last token is known, and the state of the last but one. The last can be guessed
        too."""
        self.head.add(history[-1:])
        return len(history) > 1 and self.text.cover(history[:-1])
