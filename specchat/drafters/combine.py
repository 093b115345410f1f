"""Bases of drafters that are made of others: members told together, guesses merged by learnt acceptance."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from operator import itemgetter

from torch import Tensor

from specchat.core.compiled_guessing import GrowthPlan
from specchat.core.context import Context
from specchat.core.reading import Reading
from specchat.core.request import FIRST, ExtraRow, HeadNeeds
from specchat.core.round import Round
from specchat.core.seams import Drafter
from specchat.core.states import HiddenStateSink, TextStates
from specchat.core.tree import DrawKind, Guess, TokenTree, point
from specchat.drafters.compiled_search import NEVER_SURE, Cell, CompiledSearch, merged_search
from specchat.indexes.running_estimates import LearntRates

_first = itemgetter(0)

_MOST_DOUBLINGS = 6
_CERTAIN = 1.0 - 2.0**-_MOST_DOUBLINGS

Path = tuple[int, ...]
"""Tokens below the root."""

Said = Sequence[Sequence[Guess]]
"""For each member its guesses about one node, best first."""

_Candidate = tuple[int, Cell, float, Tensor | None]
"""A token that points propose at one node: by whom, how surely, what they make its probability, and the law of the
first of them that names one. There are hundreds in a round, so it is a plain tuple."""


class MemberGroup(Drafter):
    """A drafter made of others, which are told everything together, each as if it were alone.

    Who proposes what is left to the drafters that extend it. Where they merge guesses, `merged` learns from rounds how
    often the members are right, and grows trees in one call of compiled code where all of them allow it.
    """

    def __init__(self, members: Sequence[Drafter], merged: MergedGuesses | None = None) -> None:
        self.members = tuple(members)
        self.merged = merged
        self.hidden_state_sink = _joined([member.hidden_state_sink for member in members])
        self._rows = [0] * len(self.members)  # extra rows of each member in this round

    @property
    def taps(self) -> list[int]:
        """Layers of the target that any member wants, ascending."""
        wanted: list[int] = []
        for member in self.members:  # asked every round, and mostly there are none
            if taps := member.taps:
                wanted += taps
        return sorted({*wanted}) if wanted else wanted

    @property
    def needs(self) -> HeadNeeds:
        return functools.reduce(operator.or_, (member.needs for member in self.members), FIRST)

    @property
    def passes(self) -> int:
        count = 0
        for member in self.members:
            count += member.passes
        return count

    def stored_text(self, source: int, most: int) -> tuple[str, int, Sequence[int]] | None:
        return next((found for member in self.members if (found := member.stored_text(source, most))), None)

    def start(self, history: Sequence[int]) -> None:
        """Let every member begin; what was learnt about their guesses stays."""
        if self.merged is not None:
            self.merged.forget_round()
        for member in self.members:
            member.start(history)

    def grow_at_once(self, context: Context, plan: GrowthPlan) -> TokenTree | None:
        return None if self.merged is None else self.merged.grow(context, plan)

    def extra_rows(self, tree: TokenTree) -> Sequence[ExtraRow]:
        """All members' extra rows, one member after the other; links between rows are renumbered."""
        rows: list[ExtraRow] = []
        for index, member in enumerate(self.members):
            own, before = member.extra_rows(tree), len(rows)
            self._rows[index] = len(own)
            if own:
                rows += [
                    row if row.after is None else dataclasses.replace(row, after=row.after + before) for row in own
                ]
        return rows

    def observe(self, round: Round) -> None:
        """Let every member learn; each sees its own extra rows alone."""
        if self.merged is not None:
            self.merged.learn(round.emitted)
        if round.reading.extra_row_logits is None and round.reading.extra_row_last is None:
            for member in self.members:
                member.observe(round)
            return
        ends = list(itertools.accumulate(self._rows, initial=0))
        for member, (start, end) in zip(self.members, itertools.pairwise(ends), strict=True):
            member.observe(dataclasses.replace(round, reading=_with_extra_rows(round.reading, start, end)))

    def close(self) -> None:
        if self.merged is not None:
            self.merged.forget_round()
        for member in self.members:
            member.close()


def _joined(sinks: Sequence[HiddenStateSink | None]) -> HiddenStateSink | None:
    """One sink for all members that want states of the text: each is given those of its own layers."""
    wanted = [sink for sink in sinks if sink is not None]
    if len(wanted) < 2:
        return wanted[0] if wanted else None

    def take(states: TextStates) -> None:
        for sink in wanted:
            sink.take(states.only(sink.layers))

    def skip(first: int, tokens: Sequence[int]) -> None:
        for sink in wanted:
            if sink.skip is not None:
                sink.skip(first, tokens)

    layers = frozenset[int]().union(*(sink.layers for sink in wanted))
    return HiddenStateSink(layers, take, skip if all(sink.skip is not None for sink in wanted) else None)


def _with_extra_rows(reading: Reading, start: int, end: int) -> Reading:
    def own(rows: Tensor | None) -> Tensor | None:
        return None if rows is None else rows[start:end]

    return dataclasses.replace(
        reading,
        extra_row_logits=own(reading.extra_row_logits),
        extra_row_states={layer: rows[start:end] for layer, rows in reading.extra_row_states.items()},
        extra_row_likeliest=own(reading.extra_row_likeliest),
        extra_row_last=own(reading.extra_row_last),
    )


class MemberPaths:
    """Each member's own tree, as paths below the root. A node is a member's if it proposed every token down to it.

    A node that no member proposed came from outside, and belongs to every member.
    """

    def __init__(self, members: int) -> None:
        self._all = frozenset(range(members))
        self._whose: dict[Path, set[int]] = {}

    def owners(self, path: Path) -> Collection[int]:
        return self._whose.get(path, self._all)

    def add(self, member: int, path: Path, guesses: Sequence[Guess]) -> None:
        """What a member proposed below one of its nodes."""
        for guess in guesses:
            self._whose.setdefault((*path, guess.token), set()).add(member)

    def forget_round(self) -> None:
        self._whose.clear()


class MergedGuesses:
    """Merges members' guesses by token, the most probable first, and learns how often similar guesses were right.

    A token's acceptance probability is learnt for every combination of proposers and their claimed probabilities, from
    all nodes on the path that the text took, whether or not the guess had a place in the tree. A token that several
    members propose is one guess that carries all their names.

    Sampled draws come first, untouched, each member's in their order and the members in turn: only points may be
    reordered or left out by token. Beside points they get half of the width.

    Attributes:
        paths: of this round's tree which member proposed which node, where members draft trees of their own.
    """

    def __init__(self, members: Sequence[Drafter], sure: float = NEVER_SURE, apart: bool = False, top: int = 0) -> None:
        """Nothing learnt yet; the arguments say how compiled code grows trees, as `GuessSearch` has them."""
        self.paths = MemberPaths(len(members))
        self._tree: TokenTree | None = None
        self._search = merged_search(members, sure, apart, top)
        self._trust: LearntRates | CompiledSearch = LearntRates() if self._search is None else self._search
        self._said: dict[Path, list[_Candidate]] = {}  # this round's points, by path below the root

    def grow(self, context: Context, plan: GrowthPlan) -> TokenTree | None:
        return None if self._search is None else self._search.grow(context, plan)

    def paths_to(self, tree: TokenTree, frontier: Sequence[int]) -> dict[int, Path]:
        """Node → the tokens from below the root down to it. A tree that was not seen before begins a round."""
        if self._tree is not tree:
            self.forget_round()
            self._tree = tree
        return {node: tuple(tree.path_tokens(node)) for node in frontier}

    def any_as_likely(self, said: Said, least: float) -> bool:
        rate = self._trust.rate
        return any(said) and any(rate(cell, claimed) >= least for _, cell, claimed, _ in _by_token(said))

    def merged(self, path: Path, said: Said, width: int) -> list[Guess]:
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
        if self._said:
            for place, following in enumerate(emitted):
                for candidate in self._said.get(tuple(emitted[:place]), ()):
                    self._trust.count(candidate[1], candidate[0] == following)
            self._said.clear()
        if self._search is not None:
            self._search.learn(emitted)

    def forget_round(self) -> None:
        """Forget this round's guesses; what was learnt stays."""
        self._said.clear()
        self.paths.forget_round()
        self._tree = None
        if self._search is not None:
            self._search.forget_round()


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
