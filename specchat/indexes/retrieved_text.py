"""A long text cut down to its first chunk, the chunks that its end is about, and its end."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from specchat.indexes.text_chunks import chunk_positions


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
        """What is left of a text, its tokens in order; all of it within the budget."""
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
