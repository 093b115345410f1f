"""Several drafters in one tree: equal guesses share a child, and how often each drafter is right is learnt."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

from torch import Tensor

from specchat.core.context import Context
from specchat.core.reading import Reading
from specchat.core.request import Rider
from specchat.core.round import Round
from specchat.core.seams import Proposal
from specchat.core.states import StateTap, TextStates
from specchat.core.tree import DrawKind, Guess, TokenTree
from specchat.drafters.options import MergeOptions
from specchat.drafters.parts import Parts

_HABIT = 8.0
"""Weight of a guess's own probability, in observed trials."""

_first = itemgetter(0)

Cell = tuple[tuple[str, int], ...]
"""Who proposed a token and how surely: guesses that share a cell are trusted alike."""


class Merge:
    """Asks all members about every node and merges their guesses by token, the most probable first.

    A token's acceptance probability is learnt for every combination of proposers and their claimed probabilities, from
    all nodes on the path that the text took, whether or not the guess had a place in the tree. A token that several
    members propose is one guess that carries all their names.

    A member that runs a model is asked only at nodes where no other member has a guess of at least `sure`: quotations
    are looked up, new text is drafted.

    One drafter may be a member more than once, with different options; its numbered names are then trusted apart.

    Sampled draws of a member come first, untouched and in their order: only points may be reordered or left out by
    token. Beside points they get half of the width.

    Reference: Miao et al., SpecInfer, arXiv:2305.09781 (merging by trie); Oliaro et al., SuffixDecoding,
    arXiv:2411.04975 (looking up first).
    Differs: guesses are ordered by learnt acceptance, not pruned; who is asked is decided node by node.
    """

    @staticmethod
    def draw_kinds(options: MergeOptions, members: Sequence[Collection[DrawKind]]) -> frozenset[DrawKind]:
        """Those of all members together, since it leaves sampled draws untouched."""
        return frozenset({DrawKind.POINT}).union(*members)

    def __init__(self, options: MergeOptions, parts: Parts) -> None:
        self._members = parts.members()
        self._models = {index for index, choice in enumerate(parts.choices) if choice.runs_a_network}
        self._numbers = _numbers([choice.name for choice in parts.choices])
        self._sure = options.sure
        self._trust = _Trust()
        self._riders = [0] * len(self._members)  # how many of each member ride along in this round
        self._said: dict[tuple[int, ...], list[_Candidate]] = {}  # this round's points, by path below the root

    @property
    def taps(self) -> Collection[int]:
        """Layers of the target that any member wants, ascending."""
        return sorted({layer for member in self._members for layer in member.taps})

    @property
    def text_tap(self) -> StateTap | None:
        """One tap for all members that want states of the text: each is given those of its own layers."""
        taps = [member.text_tap for member in self._members]
        wanted = [tap for tap in taps if tap is not None]
        if len(wanted) < 2:
            return wanted[0] if wanted else None

        def take(states: TextStates) -> None:
            for tap in wanted:
                tap.take(states.only(tap.layers))

        def skip(first: int, tokens: Sequence[int]) -> None:
            for tap in wanted:
                if tap.skip is not None:
                    tap.skip(first, tokens)

        layers = frozenset[int]().union(*(tap.layers for tap in wanted))
        return StateTap(layers, take, skip if all(tap.skip is not None for tap in wanted) else None)

    @property
    def passes(self) -> int:
        """Forward passes of all members' draft models so far."""
        return sum(member.passes for member in self._members)

    def start(self, history: Sequence[int]) -> None:
        """Let every member begin; what was learnt about their guesses stays."""
        self._said.clear()
        for member in self._members:
            member.start(history)

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        """(F,) the members' guesses merged by token; members that run a model are asked last, and only where needed."""
        said: dict[int, list[Sequence[Guess]]] = {node: [()] * len(self._members) for node in frontier}
        for index, member in sorted(enumerate(self._members), key=lambda pair: pair[0] in self._models):
            nodes = [node for node in frontier if index not in self._models or not self._is_sure(said[node])]
            for node, guesses in zip(nodes, member.propose(tree, nodes, width, context) if nodes else (), strict=True):
                said[node][index] = _numbered(guesses, self._numbers.get(index))
        return [self._merged(tuple(tree.path_tokens(node)), said[node], width) for node in frontier]

    def riders(self, tree: TokenTree) -> Sequence[Rider]:
        """All members' riders, one member after the other; links between riders are renumbered."""
        riders: list[Rider] = []
        for index, member in enumerate(self._members):
            own, before = member.riders(tree), len(riders)
            riders += [
                rider if rider.after is None else dataclasses.replace(rider, after=rider.after + before)
                for rider in own
            ]
            self._riders[index] = len(own)
        return riders

    def observe(self, round: Round) -> None:
        """Update the acceptance rates, then let every member learn; each sees the rows of its own riders alone."""
        self._learn(round.emitted)
        self._said.clear()
        ends = list(itertools.accumulate(self._riders, initial=0))
        for member, (start, end) in zip(self._members, itertools.pairwise(ends), strict=True):
            own = _with_riders(round.reading, start, end)
            member.observe(round if own is round.reading else dataclasses.replace(round, reading=own))

    def close(self) -> None:
        """Close every member."""
        self._said.clear()
        for member in self._members:
            member.close()

    def _is_sure(self, said: Sequence[Sequence[Guess]]) -> bool:
        """Whether one of these points is so likely that no model need be asked."""
        return any(self._trust.probability(candidate) >= self._sure for candidate in _by_token(said))

    def _merged(self, path: tuple[int, ...], said: Sequence[Sequence[Guess]], width: int) -> list[Guess]:
        draws = [guess for guesses in said for guess in guesses if guess.kind is not DrawKind.POINT]
        candidates = _by_token(said)
        self._said[path] = candidates
        if draws and candidates:
            draws = draws[: max(1, width // 2)]
        believed = [(self._trust.probability(candidate), candidate) for candidate in candidates]
        believed.sort(key=_first, reverse=True)
        points = [
            Guess(token, q=q, logprob=math.log(probability), proposer=_names(cell))
            for probability, (token, cell, _, q) in believed[: max(0, width - len(draws))]
        ]
        return [*draws[:width], *points] if draws else points

    def _learn(self, emitted: Sequence[int]) -> None:
        for place, following in enumerate(emitted):
            for candidate in self._said.get(tuple(emitted[:place]), ()):
                self._trust.count(candidate, candidate.token == following)


class _Candidate(NamedTuple):
    """A token that points propose at one node: by whom, how surely, what they make its probability, and the law of the
    first of them that names one."""

    token: int
    cell: Cell
    claimed: float
    q: Tensor | None = None


class _Trust:
    """How often guesses of a cell were right, beginning with what their proposers claim."""

    def __init__(self) -> None:
        self._seen: dict[Cell, tuple[int, int]] = {}  # hits, trials

    def count(self, candidate: _Candidate, right: bool) -> None:
        hits, trials = self._seen.get(candidate.cell, (0, 0))
        self._seen[candidate.cell] = hits + right, trials + 1

    def probability(self, candidate: _Candidate) -> float:
        hits, trials = self._seen.get(candidate.cell, (0, 0))
        return (hits + _HABIT * candidate.claimed) / (trials + _HABIT)


def _numbers(names: Sequence[str]) -> dict[int, int]:
    """Place → 1, 2, … for the members whose name comes more than once."""
    return {place: names[: place + 1].count(name) for place, name in enumerate(names) if names.count(name) > 1}


def _numbered(guesses: Sequence[Guess], number: int | None) -> Sequence[Guess]:
    """The guesses with a number behind their proposer's name: members of one name are trusted apart."""
    if number is None:
        return guesses
    return [
        guess._replace(proposer="+".join(f"{name} {number}" for name in guess.proposer.split("+"))) for guess in guesses
    ]


def _by_token(said: Sequence[Sequence[Guess]]) -> list[_Candidate]:
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


def _with_riders(reading: Reading, start: int, end: int) -> Reading:
    """The reading with the rows of some riders alone."""
    if reading.rider_logits is None:
        return reading
    return dataclasses.replace(
        reading,
        rider_logits=reading.rider_logits[start:end],
        rider_states={layer: rows[start:end] for layer, rows in reading.rider_states.items()},
        rider_likeliest=None if reading.rider_likeliest is None else reading.rider_likeliest[start:end],
    )
