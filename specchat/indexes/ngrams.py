"""An index of n-grams: the tokens that followed every short run in a growing text, and how often."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

_Followed = tuple[int, int]
"""Where in the text a token last followed a run, and how often it did."""

_NEVER: _Followed = (-1, 0)


class NgramIndex:
    """For every run of `min_ngram` to `max_ngram` tokens, the different tokens that followed it, the latest last."""

    def __init__(self, min_ngram: int, max_ngram: int) -> None:
        self.min_ngram = min_ngram
        self.max_ngram = max_ngram
        self._text: list[int] = []
        self._after: dict[tuple[int, ...], dict[int, _Followed]] = {}  # run → token, the latest last

    def __len__(self) -> int:
        """Tokens of text indexed so far."""
        return len(self._text)

    def become(self, text: Sequence[int]) -> None:
        """Index exactly this text; only what is new, where it goes on from before."""
        known = len(self._text)
        if list(text[:known]) != self._text:
            self._text.clear()
            self._after.clear()
            known = 0
        for token in text[known:]:
            self.append(token)

    def append(self, token: int) -> None:
        """Append to the text. Runs that end the text have no continuation yet and get one with the next token."""
        here = len(self._text)
        for size in range(self.min_ngram, min(self.max_ngram, here) + 1):
            followers = self._after.setdefault(tuple(self._text[here - size :]), {})
            followers[token] = here, followers.pop(token, _NEVER)[1] + 1
        self._text.append(token)

    def last(self, count: int) -> list[int]:
        """The last so many tokens of the text."""
        return self._text[len(self._text) - count :]

    def continuations(self, run: Sequence[int], limit: int) -> list[tuple[int, int]]:
        """Up to `limit` different tokens that followed `run`, each with the length of the run it followed.

        After its longest suffix first, the most recent first.
        """
        found: dict[int, int] = {}
        for size, followers in self._known(run):
            for token in reversed(followers):
                found.setdefault(token, size)
                if len(found) >= limit:
                    return list(found.items())
        return list(found.items())

    def place(self, run: Sequence[int], size: int, token: int) -> int:
        """Where in the text `token` last followed the last `size` tokens of `run`, which it did."""
        return self._after[tuple(run[len(run) - size :])][token][0]

    def matches(self, run: Sequence[int], most: int) -> list[tuple[int, dict[int, int]]]:
        """(m, tokens that followed the last m tokens of `run` and how often) for the `most` longest m that occur."""
        return [
            (size, {token: count for token, (_, count) in followers.items()})
            for size, followers in itertools.islice(self._known(run), most)
        ]

    def _known(self, run: Sequence[int]) -> Iterator[tuple[int, dict[int, _Followed]]]:
        """(m, what followed the last m tokens of `run`) for every m that occurred and went on, the longest first."""
        for size in range(min(self.max_ngram, len(run)), self.min_ngram - 1, -1):
            if followers := self._after.get(tuple(run[len(run) - size :])):
                yield size, followers
