"""A text in chunks of a few tokens, of which those that are most like its end are found again."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specchat.core.states import TextStates


class TextChunks:
    """States of a text's tokens, and which chunks of it matter for what comes next."""

    def __init__(self, layer: int, chunk_tokens: int) -> None:
        self._layer = layer
        self._size = chunk_tokens
        self._states: Tensor | None = None  # (capacity, d)
        self._known = 0

    @torch.inference_mode()  # some states come from there, and no others could be written over
    def take(self, states: TextStates) -> None:
        """Know the states of a stretch; what was known from there on is replaced."""
        rows = states.layers[self._layer]
        if self._states is None or states.end > len(self._states):
            grown = rows.new_zeros(max(1024, 2 * states.end), rows.shape[1])
            if self._states is not None:
                grown[: self._known] = self._states[: self._known]
            self._states = grown
        assert states.first <= self._known, "states of a text have no gap"
        self._states[states.first : states.end] = rows
        self._known = states.end

    def forget(self) -> None:
        """Give back what is known of the text."""
        self._states, self._known = None, 0

    def choose(self, tokens: int, budget_tokens: int, recent_tokens: int) -> list[int]:
        """As `chunk_positions`, by how like the mean state of a chunk is to the state of the last token known.

        That is the cosine, after the mean of all chunks is taken away.
        """
        chosen: list[int] = chunk_positions(tokens, budget_tokens, recent_tokens, self._size, self.likeness).tolist()
        return chosen

    @torch.inference_mode()
    def likeness(self, first: int, end: int) -> Tensor:
        """(chunks,) for each chunk between two positions how like it is to the last token known.

        Chunks of which not all states are known, as those of later tokens, are as unlike as can be.
        """
        known = min(end, self._known) - first
        whole = max(0, known // self._size)
        missing = torch.full(((end - first) // self._size - whole,), -1.0)
        if self._states is None or not whole:
            return missing
        rows = self._states[first : first + whole * self._size].float()
        means = rows.view(whole, self._size, -1).mean(dim=1)
        centre = means.mean(dim=0)
        query = self._states[self._known - 1].float() - centre
        return torch.cat([torch.cosine_similarity(means - centre, query[None], dim=1).cpu(), missing])


def chunk_positions(
    tokens: int, budget_tokens: int, recent_tokens: int, size: int, likeness: Callable[[int, int], Tensor]
) -> Tensor:
    """Positions of a text of so many tokens, ascending, at most as many as the budget.

    The first chunk, the last `recent_tokens` and what is left of their chunk, and of the others those that are most
    like the end; of equals the later ones. A text within the budget is taken whole.

    Args:
        size: tokens of a chunk.
        likeness: (first position, position behind the last) → (…, chunks) how like it is for each chunk between them.

    Returns:
        (…, n) int64; (tokens,) of a text that is taken whole.
    """
    if tokens <= budget_tokens:
        return torch.arange(tokens)
    recent = max(0, tokens - recent_tokens) // size * size
    first = min(size, recent)
    places = max(0, (budget_tokens - first - (tokens - recent)) // size)
    scores = likeness(first, recent)
    latest_first = scores.flip(-1).argsort(dim=-1, descending=True, stable=True)[..., :places]
    chunks = (scores.shape[-1] - 1 - latest_first).sort(dim=-1).values
    chosen = (first + size * chunks[..., None] + torch.arange(size)).flatten(-2)
    begin, end = torch.arange(first), torch.arange(recent, tokens)
    return torch.cat([begin.expand(*chosen.shape[:-1], -1), chosen, end.expand(*chosen.shape[:-1], -1)], dim=-1)
