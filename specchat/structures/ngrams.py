"""Where every short run of tokens occurred in a growing text, and what followed it."""

from __future__ import annotations

from collections.abc import Sequence


class NgramIndex:
    """For every run of `min_ngram` to `max_ngram` tokens, the places right after it, oldest first."""

    def __init__(self, min_ngram: int, max_ngram: int) -> None:
        self.min_ngram = min_ngram
        self.max_ngram = max_ngram
        self._text: list[int] = []
        self._after: dict[tuple[int, ...], list[int]] = {}

    def __len__(self) -> int:
        """Tokens of text indexed so far."""
        return len(self._text)

    def clear(self) -> None:
        self._text.clear()
        self._after.clear()

    def extend(self, tokens: Sequence[int]) -> None:
        """Append to the text. Runs that end the text have no continuation yet and are indexed with the next token."""
        for token in tokens:
            here = len(self._text)
            for size in range(self.min_ngram, min(self.max_ngram, here) + 1):
                self._after.setdefault(tuple(self._text[here - size :]), []).append(here)
            self._text.append(token)

    def continuations(self, run: Sequence[int], limit: int) -> list[int]:
        """Up to `limit` different tokens that followed `run`: after its longest suffix first, the most recent first."""
        found: dict[int, None] = {}
        for size in range(min(self.max_ngram, len(run)), self.min_ngram - 1, -1):
            for place in reversed(self._after.get(tuple(run[len(run) - size :]), ())):
                found.setdefault(self._text[place])
                if len(found) >= limit:
                    return list(found)
        return list(found)
