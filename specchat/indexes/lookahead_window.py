"""The window of lookahead decoding: guessed tokens at future places, each column with its last few versions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class WindowRow(NamedTuple):
    """A token of the window as a row of the target's pass.

    Args:
        after: index of the row it follows; None for the root.
    """

    token: int
    after: int | None


class LookaheadWindow:
    """A trunk of guesses that follow the root, and below each of its places a branch of later guesses.

    With W columns and n-grams of N tokens the trunk holds W − 1 tokens, the oldest guesses for the next places. Column
    i begins after the trunk's token i − 1, column 0 after the root; its branch holds N − 2 tokens, each guessed one
    round later than the one before. One pass computes the next token of every column in parallel. A column with that
    token is an n-gram; then every column moves up by one place, and its first token becomes the trunk's.

    At first the window holds tokens of the text, since something has to stand there. Their n-grams do not count.

    Reference: Fu et al., Break the Sequential Dependency of LLM Inference Using Lookahead Decoding, arXiv:2402.02057.
    """

    def __init__(self, columns: int, ngram: int) -> None:
        self._columns = columns
        self._levels = ngram - 2
        self._trunk: list[int] = []
        self._branches: list[list[int]] = []
        self._age = 0

    @property
    def size(self) -> int:
        """Rows that it adds to a pass."""
        return len(self._trunk) + self._columns * self._levels

    def begin(self, text: Sequence[int]) -> None:
        """Start anew, with tokens from all over the text."""
        count = self._columns - 1 + self._columns * self._levels
        tokens = [text[place * len(text) // count] for place in range(count)]
        self._trunk, rest = tokens[: self._columns - 1], tokens[self._columns - 1 :]
        self._branches = [rest[i * self._levels : (i + 1) * self._levels] for i in range(self._columns)]
        self._age = 0

    def rows(self) -> list[WindowRow]:
        """Every token of the window, the trunk first, then column by column."""
        rows = [WindowRow(token, place - 1 if place else None) for place, token in enumerate(self._trunk)]
        for column, branch in enumerate(self._branches):
            after = column - 1 if column else None
            for token in branch:
                rows.append(WindowRow(token, after))
                after = len(rows) - 1
        return rows

    def tips(self) -> list[int | None]:
        """(W,) for each column the row after which its next token is computed; None for the root."""
        if self._levels:
            return [self._columns - 2 + (column + 1) * self._levels for column in range(self._columns)]
        return [column - 1 if column else None for column in range(self._columns)]

    def advance(self, root: int, said: Sequence[int]) -> list[tuple[int, ...]]:
        """Take in the next token of every column; returns the n-grams that are the target's own.

        Args:
            root: the token before the window.
            said: (W,) the token computed after each tip.
        """
        columns = [[*branch, token] for branch, token in zip(self._branches, said, strict=True)]
        keys = [root, *self._trunk]
        own = self._age >= self._levels
        ngrams = [(key, *column) for key, column in zip(keys, columns, strict=True)] if own else []
        self._trunk = [column[0] for column in columns[1:]]
        self._branches = [column[1:] for column in columns]
        self._age += 1
        return ngrams
