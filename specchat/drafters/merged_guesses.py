"""Guesses of several drafters about one node as one list: equal tokens joined, weighted by what was right so far."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

from torch import Tensor

from specchat.core.tree import DrawKind, Guess
from specchat.drafters.choice import DrafterChoice
from specchat.structures.learnt_rates import LearntRates

_first = itemgetter(0)

Cell = tuple[tuple[str, int], ...]
"""Who proposed a token and how surely: guesses that share a cell are trusted alike."""

Said = Sequence[Sequence[Guess]]
"""For each member its guesses about one node, best first."""


class MergedGuesses:
    """Merges members' guesses by token, the most probable first, and learns how often their like were right.

    A token's acceptance probability is learnt for every combination of proposers and their claimed probabilities, from
    all nodes on the path that the text took, whether or not the guess had a place in the tree. A token that several
    members propose is one guess that carries all their names.

    Sampled draws come first, untouched, each member's in their order and the members in turn: only points may be
    reordered or left out by token. Beside points they get half of the width.
    """

    def __init__(self, choices: Sequence[DrafterChoice]) -> None:
        self._numbers = _numbers([choice.name for choice in choices])
        self._trust = LearntRates()  # by cell
        self._said: dict[tuple[int, ...], list[_Candidate]] = {}  # this round's points, by path below the root

    def named(self, member: int, guesses: Sequence[Guess]) -> Sequence[Guess]:
        """The guesses with a number behind their proposer's name: members of one name are trusted apart."""
        number = self._numbers.get(member)
        if number is None:
            return guesses
        return [
            guess._replace(proposer="+".join(f"{name} {number}" for name in guess.proposer.split("+")))
            for guess in guesses
        ]

    def any_as_likely(self, said: Said, least: float) -> bool:
        """Whether one of these points is at least so likely."""
        return any(said) and any(self._probability(candidate) >= least for candidate in _by_token(said))

    def merged(self, path: tuple[int, ...], said: Said, width: int) -> list[Guess]:
        """Up to `width` guesses for the node at this path."""
        draws = [guess for guess in _in_turn(said) if guess.kind is not DrawKind.POINT]
        candidates = _by_token(said)
        self._said[path] = candidates
        if draws and candidates:
            draws = draws[: max(1, width // 2)]
        believed = [(self._probability(candidate), candidate) for candidate in candidates]
        believed.sort(key=_first, reverse=True)
        points = [
            Guess(token, q=q, logprob=math.log(probability), proposer=_names(cell))
            for probability, (token, cell, _, q) in believed[: max(0, width - len(draws))]
        ]
        return [*draws[:width], *points] if draws else points

    def learn(self, emitted: Sequence[int]) -> None:
        """Count which of this round's points were right, and forget them."""
        for place, following in enumerate(emitted):
            for candidate in self._said.get(tuple(emitted[:place]), ()):
                self._trust.count(candidate.cell, candidate.token == following)
        self.forget_round()

    def forget_round(self) -> None:
        """Forget this round's guesses; what was learnt stays."""
        self._said.clear()

    def _probability(self, candidate: _Candidate) -> float:
        return self._trust.rate(candidate.cell, candidate.claimed)


class _Candidate(NamedTuple):
    """A token that points propose at one node: by whom, how surely, what they make its probability, and the law of the
    first of them that names one."""

    token: int
    cell: Cell
    claimed: float
    q: Tensor | None = None


def _in_turn(said: Said) -> Iterator[Guess]:
    """Every member's first guess, then every member's second, …"""
    return (guess for rank in itertools.zip_longest(*said) for guess in rank if guess is not None)


def _numbers(names: Sequence[str]) -> dict[int, int]:
    """Place → 1, 2, … for the members whose name comes more than once."""
    return {place: names[: place + 1].count(name) for place, name in enumerate(names) if names.count(name) > 1}


def _by_token(said: Said) -> list[_Candidate]:
    """The points of all members, merged by token, in the order they were first said."""
    found: dict[int, _Candidate] = {}
    for guesses in said:
        for rank, guess in enumerate(guesses):
            if guess.kind is not DrawKind.POINT:
                continue
            claim = 0.5 ** (rank + 1) if guess.logprob is None else min(1.0, math.exp(guess.logprob))
            cell: Cell = ((guess.proposer, _sureness(claim)),)
            q = guess.q
            if (before := found.get(guess.token)) is not None:
                cell, claim = before.cell + cell, max(before.claimed, claim)
                q = q if before.q is None else before.q
            found[guess.token] = _Candidate(guess.token, cell, claim, q)
    return list(found.values())


def _sureness(probability: float) -> int:
    """0 for certain, 1 for a half or more, 2 for a quarter or more, … 6 for all that is less."""
    return 0 if probability >= 0.99 else min(6, 1 - math.frexp(probability)[1])


@lru_cache(maxsize=1024)
def _names(cell: Cell) -> str:
    return "+".join(name for name, _ in cell)
