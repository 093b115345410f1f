"""A draft model that reads the part of a long text which its end is about."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from specchat.core.context import Context
from specchat.core.seams import Proposal
from specchat.core.tree import DrawKind, TokenTree
from specchat.drafters.combine import MemberGroup
from specchat.drafters.draft_model import DraftModel
from specchat.drafters.options import DraftModelOptions, RetrievedContextOptions
from specchat.drafters.parts import Parts
from specchat.indexes.text_chunks import chunk_positions


class RetrievedContext(MemberGroup):
    """As `draft_model`, but of a text longer than the budget the draft model reads only a retrieved part.

    So drafting costs the same however long the chat is, and a draft model with a short context can draft for a target
    with a long one. Positions of noise and penalties stay those of the whole text. Under `follow` nothing of this can
    change the text; with the rule `transfer` the target leans towards what the draft model holds likely.

    Reference: Chen et al., RAPID, arXiv:2502.20330, with the target unmoved (eta = 0). Differs: chunks are found by the
    words they share with the end of the text instead of by an embedding model; the draft model is the pair's.
    """

    kinds = frozenset(DrawKind)
    """All kinds: what the draft model says of the part is a law of its own."""

    def __init__(self, options: RetrievedContextOptions, parts: Parts) -> None:
        self._text = RetrievedText(options.budget, options.chunk, options.refresh)
        super().__init__([DraftModel(DraftModelOptions(), parts, self._text.shortened)])

    def start(self, history: Sequence[int]) -> None:
        """Choose the part of the text, and read it."""
        self._text.forget()
        super().start(history)

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        """(F,) for each node what the draft model holds likely after the part and the node's path."""
        return self.members[0].propose(tree, frontier, width, context)

    def close(self) -> None:
        self._text.forget()
        super().close()


class RetrievedText:
    """The same part of a text while it grows, until so many tokens have come that the part is chosen anew.

    Chunks are compared with the end of the text by the words they share: the cosine of the counts of their tokens, each
    weighted by how few chunks have it (TF-IDF).
    """

    def __init__(self, budget_tokens: int, chunk_tokens: int, refresh_tokens: int) -> None:
        self._budget = budget_tokens
        self._size = chunk_tokens
        self._refresh = refresh_tokens
        self._chosen: list[int] = []  # positions
        self._chosen_at = 0

    def forget(self) -> None:
        """Another text begins: choose anew."""
        self._chosen, self._chosen_at = [], 0

    def shortened(self, text: Sequence[int]) -> list[int]:
        """The part of a text that is kept, its tokens in order; all of it within the budget."""
        if len(text) <= self._budget:
            return list(text)
        if not self._chosen or not 0 <= len(text) - self._chosen_at < self._refresh:
            recent = self._budget // 4

            def likeness(first: int, end: int) -> Tensor:
                return torch.tensor(shared_words(text[first:end], self._size, text[-recent:]), dtype=torch.float64)

            self._chosen = chunk_positions(len(text), self._budget, recent, self._size, likeness).tolist()
            self._chosen_at = len(text)
        return [*(text[position] for position in self._chosen), *text[self._chosen_at :]]


def shared_words(text: Sequence[int], size: int, query: Sequence[int]) -> list[float]:
    """For every chunk of a text, the cosine of its TF-IDF vector and the query's."""
    chunks = [Counter(text[start : start + size]) for start in range(0, len(text) - size + 1, size)]
    holding = Counter(token for chunk in chunks for token in chunk)
    rarity = {token: math.log((1 + len(chunks)) / (1 + count)) for token, count in holding.items()}
    asked = _weighted(Counter(query), rarity)
    return [_cosine(_weighted(chunk, rarity), asked) for chunk in chunks]


def _weighted(counts: Counter[int], rarity: dict[int, float]) -> dict[int, float]:
    return {token: count * rarity[token] for token, count in counts.items() if token in rarity}


def _cosine(one: dict[int, float], other: dict[int, float]) -> float:
    product = sum(weight * other.get(token, 0.0) for token, weight in one.items())
    norms = math.hypot(*one.values()) * math.hypot(*other.values())
    return product / norms if norms else 0.0
