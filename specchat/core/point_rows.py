"""Points of one drafter below several nodes as rows of numbers: guesses are made only of those that are asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import overload

from specchat.core.tree import Guess, point


class PointRows(Sequence[Sequence[Guess]]):
    """A proposal of points alone, whose guesses are made only where they are asked for.

    Of thousands of guesses in a round some hundred get a place in the tree.

    Attributes:
        tokens: (F, K) different tokens for each node, the likeliest first.
        values: (F, K) their log-probabilities, or logits, never rising along a row; −inf, at the end of a row, where
            there is no token.
        totals: (F,) what is to be taken from logits to make log-probabilities of them; else zeros.
        proposer: the drafter's name.
    """

    __slots__ = ("proposer", "tokens", "totals", "values")

    def __init__(
        self, tokens: list[list[int]], values: list[list[float]], totals: list[float] | None, proposer: str
    ) -> None:
        """`totals` is None for log-probabilities."""
        self.tokens, self.values, self.proposer = tokens, values, proposer
        self.totals = totals or [0.0] * len(tokens)

    def __len__(self) -> int:
        """F: the nodes it is about."""
        return len(self.tokens)

    def rows(self) -> Iterator[tuple[list[int], list[float], float]]:
        """For each node its tokens, their values, and what is to be taken from these."""
        return zip(self.tokens, self.values, self.totals, strict=True)

    @overload
    def __getitem__(self, place: int) -> list[Guess]: ...

    @overload
    def __getitem__(self, place: slice) -> list[list[Guess]]: ...

    def __getitem__(self, place: int | slice) -> list[Guess] | list[list[Guess]]:
        """The guesses below a node, the best first."""
        if isinstance(place, slice):
            return [self[at] for at in range(len(self))[place]]
        each, total = zip(self.tokens[place], self.values[place], strict=True), self.totals[place]
        return [point(token, value - total, self.proposer) for token, value in each if value > -math.inf]


def joined(rows: Sequence[PointRows]) -> PointRows:
    """The rows of one drafter (at least one), one after the other."""
    each = [(tokens, values, total) for some in rows for tokens, values, total in some.rows()]
    tokens, values, totals = map(list, zip(*each, strict=True))
    return PointRows(tokens, values, totals, rows[0].proposer)


def as_points(proposal: Sequence[Sequence[Guess]]) -> Sequence[Sequence[Guess]]:
    """The same guesses without a claim about how their tokens were drawn."""
    if isinstance(proposal, PointRows):
        return proposal
    return [[guess.as_point() for guess in guesses] for guesses in proposal]
