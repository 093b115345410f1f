"""Guesses of several drafters about one node as one list: equal tokens joined, weighted by what was right so far."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Protocol

from torch import Tensor

from specchat.core.tree import DrawKind, Guess, point
from specchat.indexes.learnt_rates import LearntRates

_first = itemgetter(0)

_MOST_DOUBLINGS = 6
_CERTAIN = 1.0 - 2.0**-_MOST_DOUBLINGS

Cell = tuple[tuple[str, int], ...]
"""Who proposed a token and how surely: guesses that share a cell are trusted alike."""


class Rates(Protocol):
    """What `LearntRates` does, by cell."""

    def count(self, kind: Cell, right: bool) -> None:
        """Count a guess of this kind, and whether it was right."""

    def rate(self, kind: Cell, claimed: float) -> float:
        """The acceptance probability of such a guess, or near the claimed one where few were counted."""


Said = Sequence[Sequence[Guess]]
"""For each member its guesses about one node, best first."""


class MergedGuesses:
    """Merges members' guesses by token, the most probable first, and learns how often similar guesses were right.

    A token's acceptance probability is learnt for every combination of proposers and their claimed probabilities, from
    all nodes on the path that the text took, whether or not the guess had a place in the tree. A token that several
    members propose is one guess that carries all their names.

    Sampled draws come first, untouched, each member's in their order and the members in turn: only points may be
    reordered or left out by token. Beside points they get half of the width.
    """

    def __init__(self) -> None:
        self._trust: Rates = LearntRates()  # by cell
        self._said: dict[tuple[int, ...], list[_Candidate]] = {}  # this round's points, by path below the root

    def learn_in(self, rates: Rates) -> None:
        """Keep what is learnt there from now on."""
        self._trust = rates

    def any_as_likely(self, said: Said, least: float) -> bool:
        """Whether one of these points is at least so likely."""
        rate = self._trust.rate
        return any(said) and any(rate(cell, claimed) >= least for _, cell, claimed, _ in _by_token(said))

    def merged(self, path: tuple[int, ...], said: Said, width: int) -> list[Guess]:
        """Up to `width` guesses for the node at this path."""
        draws: list[Guess] = []
        if any(guess.kind is not DrawKind.POINT for guesses in said for guess in guesses):
            draws = [guess for guess in _in_turn(said) if guess.kind is not DrawKind.POINT]
        candidates = _by_token(said)
        self._said[path] = candidates
        if draws and candidates:
            draws = draws[: max(1, width // 2)]
        rate = self._trust.rate
        believed = [(rate(candidate[1], candidate[2]), candidate) for candidate in candidates]
        believed.sort(key=_first, reverse=True)
        points = [
            point(token, math.log(probability), _names(cell), q)
            for probability, (token, cell, _, q) in believed[: max(0, width - len(draws))]
        ]
        return [*draws[:width], *points] if draws else points

    def learn(self, emitted: Sequence[int]) -> None:
        """Count which of this round's points were right, and forget them."""
        if not self._said:
            return
        for place, following in enumerate(emitted):
            for candidate in self._said.get(tuple(emitted[:place]), ()):
                self._trust.count(candidate[1], candidate[0] == following)
        self.forget_round()

    def forget_round(self) -> None:
        """Forget this round's guesses; what was learnt stays."""
        self._said.clear()


_Candidate = tuple[int, Cell, float, Tensor | None]
"""A token that points propose at one node: by whom, how surely, what they make its probability, and the law of the
first of them that names one. There are hundreds in a round, so it is a plain tuple."""


def _in_turn(said: Said) -> Iterator[Guess]:
    """Every member's first guess, then every member's second, …"""
    return (guess for rank in itertools.zip_longest(*said) for guess in rank if guess is not None)


def _by_token(said: Said) -> list[_Candidate]:
    """The points of all members, merged by token, in the order they were first said."""
    found: dict[int, _Candidate] = {}
    for guesses in said:
        for rank, (token, kind, q, logprob, proposer, _) in enumerate(guesses):
            if kind is not DrawKind.POINT:
                continue
            claim = 0.5 ** (rank + 1) if logprob is None else min(1.0, math.exp(logprob))
            cell = _cell(proposer, _sureness(claim))
            if token in found:
                _, cell_before, claim_before, q_before = found[token]
                cell, claim = cell_before + cell, max(claim_before, claim)
                q = q if q_before is None else q_before
            found[token] = (token, cell, claim, q)
    return list(found.values())


@lru_cache(maxsize=1024)
def _cell(proposer: str, sureness: int) -> Cell:
    return ((proposer, sureness),)


def _sureness(probability: float) -> int:
    """How often the odds double from even ones, from −6 to 6.

    As fine where guesses are nearly certain as where they are unlikely: a tree goes deep only along the nearly certain.
    """
    if probability >= _CERTAIN:
        return _MOST_DOUBLINGS
    return max(-_MOST_DOUBLINGS, math.frexp(probability / (1.0 - probability))[1] - 1)


@lru_cache(maxsize=1024)
def _names(cell: Cell) -> str:
    return "+".join(name for name, _ in cell)
