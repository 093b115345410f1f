"""The part of a draft model's head that drafting needs: the tokens that the target uses, and those of the text."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specchat.core.optional_model_abilities import GuessesSome
from specchat.core.request import DEFAULT_REQUEST, HeadOfSome, PassRequest
from specchat.core.seams import Model
from specchat.indexes.token_counts import TokenCounts


class FrequentHead:
    """What a draft model's passes ask for: logits of the frequent tokens, where its vocabulary is larger.

    Frequent are the tokens that the target wrote most in this user's chats, and after them those with the lowest
    numbers: a tokenizer that is trained by merging pairs or by likelihood numbers its tokens by frequency. In English
    prose and in Python the lowest 65 536 of Qwen2.5's 151 936 are 98 of 100 tokens, and with the text's own 99. A model
    that was trained to guess some tokens alone knows which are frequent: of the others, only the text's own are added.
    """

    def __init__(self, model: Model, size: int, vocab_size: int) -> None:
        """No rows yet.

        Args:
            size: so many tokens besides those of the text; 0 for all.
            vocab_size: tokens from this number on are never asked for.
        """
        self._model = model
        self._vocab_size = min(vocab_size, model.vocab_size)
        self._known = model.guessable if isinstance(model, GuessesSome) and size else ()
        self._size = min(size, len(self._known)) if self._known else size
        self._trims = 0 < self._size < self._vocab_size
        self._used = TokenCounts(self._vocab_size)
        self._head: HeadOfSome | None = None

    @property
    def request(self) -> PassRequest:
        """What to ask of a pass."""
        return DEFAULT_REQUEST if self._head is None else PassRequest(head=self._head)

    def start(self, history: Sequence[int]) -> None:
        """A text begins; its tokens can be guessed."""
        if self._trims and self._head is None:
            known = set(self._known) or range(self._vocab_size)
            ranked = [token for token in self._used.ranked() if token in known]
            frequent = dict.fromkeys([*ranked, *(self._known or range(self._size))])
            self._head = self._model.trimmed_head(list(frequent)[: self._size])
        self._add(history)

    def learn(self, emitted: Sequence[int]) -> None:
        """The target wrote these tokens."""
        if self._trims:
            self._used.add(emitted)
            self._add(emitted)

    def save_state(self) -> bytes:
        """How often the target wrote each token."""
        return self._used.to_bytes()

    def restore_state(self, state: bytes) -> None:
        """Continue from saved counts; raises ValueError if they are damaged or of another vocabulary."""
        self._used.restore(state)
        self._head = None

    def _add(self, tokens: Sequence[int]) -> None:
        if self._head is not None:
            self._head.add([token for token in tokens if token < self._vocab_size])


def over_vocabulary(tokens: Tensor, logits: Tensor, vocab_size: int) -> Tensor:
    """(V,) logits of (H,) those of some tokens; what cannot be guessed is impossible."""
    spread = logits.new_full((vocab_size,), -torch.inf)
    spread[tokens] = logits
    return spread
