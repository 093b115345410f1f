"""Which entries of a text a network that attends to it has read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from specchat.core.request import CHUNK_TOKENS
from specchat.core.states import TextStates
from specchat.models.decoder.cache_rows import common_prefix
from specchat.models.draft_heads.drafting_inputs import DraftingInputs


class TextEntries:
    """Entry s pairs what was made of the target's states at token s with token s + 1: the last entry is the root's."""

    def __init__(self, given: DraftingInputs) -> None:
        self._given = given
        self._read: list[int] = []  # the tokens of the entries that were read

    def __len__(self) -> int:
        return len(self._read)

    def take(self, states: TextStates) -> None:
        """States of the text: what was read of others in their place is forgotten."""
        self._given.take(states)
        del self._read[max(0, states.first - 1) :]  # entry s is made of state s

    def unread(self, history: Sequence[int], again: int = 1) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Each piece that is to be read now: its first entry, and (n, d) what is taken of states and of tokens.

        They count as read once all were asked for.

        Args:
            history: whose states are known but for its last token.
            again: so many of the last entries are read in any case: their states are where drafting begins.
        """
        tokens = history[1:]
        kept = min(common_prefix(self._read, tokens), max(0, len(tokens) - again))
        for first in range(kept, len(tokens), CHUNK_TOKENS):
            some = tokens[first : first + CHUNK_TOKENS]
            yield first, self._given.text.rows(first, first + len(some)), self._given.tokens.of(some)
        self._read = list(tokens)
