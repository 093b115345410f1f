"""Drafters whose guesses compiled code asks for by itself, and the trees that it grows of them in one call."""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import Sequence

from specchat.compiled.build import NativeUnavailable
from specchat.core.compiled_guessing import Asked, CompiledNetwork, GrowthPlan
from specchat.core.context import Context
from specchat.core.seams import Drafter
from specchat.core.tree import TokenTree, point
from specchat.indexes.guess_search import MOST_DOUBLINGS, MOST_MEMBERS, MOST_WIDTH, SURENESSES, Found, GuessSearch

NEVER_SURE = 2.0
"""More than any guess is likely: networks are asked whatever others guess."""

_MOST_ROWS = 1024
"""Trees for which a network reads more are grown level by level."""

Cell = tuple[tuple[str, int], ...]
"""Who proposed a token and how surely: guesses that share a cell are trusted alike."""


class CompiledDrafter(Drafter):
    """A drafter for whose guesses compiled code can ask: it grows what `propose` says into a whole tree in one call."""

    def __init__(self, proposer: str) -> None:
        """`proposer` is the name on its guesses."""
        self.proposer = proposer
        self._search = _lone_search(self)

    def grow_at_once(self, context: Context, plan: GrowthPlan) -> TokenTree | None:
        """The tree of what `propose` says; a network may be called between its steps."""
        return None if self._search is None else self._search.grow(context, plan)

    @abstractmethod
    def compiled(self, context: Context, tokens: Sequence[int], rows: int) -> Asked | None:
        """The source of guesses that compiled code asks in a tree that begins; None where only `propose` can be asked.

        Args:
            tokens: what a network must know to read: the root, and more of the tree.
            rows: the most rows that it may be asked to read.
        """

    def count_passes(self, count: int) -> None:
        """Compiled code let its network read so many times; a model counts its passes itself."""


class CompiledSearch:
    """Grows the trees that policies grow of the same drafters' proposals; of a merge's it holds what both learn."""

    def __init__(self, members: Sequence[CompiledDrafter], names: Sequence[str], search: GuessSearch) -> None:
        """Nothing learnt yet; `names` are the members' own on their guesses, all different; `search` is for as many."""
        self._members = tuple(members)
        self._search = search
        self._digit = {name: SURENESSES**place for place, name in enumerate(names)}
        self._names: dict[int, str] = {}  # of cells
        self._cells: dict[Cell, int] = {}
        self._grown = False

    def rate(self, kind: Cell, claimed: float) -> float:
        return self._search.rate(self._cell(kind), claimed)

    def count(self, kind: Cell, right: bool) -> None:
        self._search.count(self._cell(kind), right)

    def grow(self, context: Context, plan: GrowthPlan) -> TokenTree | None:
        budget, widest = plan.budget, plan.budget.width if plan.shape is None else plan.shape.widest
        if not 0 < widest <= MOST_WIDTH or not 0 < budget.nodes <= _MOST_ROWS or context.wants_q:
            return None
        found = self._found(context, plan, min(budget.nodes * budget.depth + 8, _MOST_ROWS))
        if found is None:
            return None
        self._grown = True
        parents, tokens, cells, logprobs = found
        names = map(self._named, cells)
        return TokenTree.of_points(
            context.root, context.vocab_size, parents, tokens, map(point, tokens, logprobs, names)
        )

    def learn(self, emitted: Sequence[int]) -> None:
        """Count which guesses were right, if this round's tree was grown here."""
        if self._grown:
            self._search.learn(emitted)
        self._grown = False

    def forget_round(self) -> None:
        self._grown = False

    def _found(self, context: Context, plan: GrowthPlan, rows: int) -> Found | None:
        tokens = [context.root]
        while True:
            asked: list[Asked] = []
            for member in self._members:
                answer = member.compiled(context, tokens, rows)
                if answer is None:
                    return None
                asked.append(answer)
            found = self._search.grow(context, plan, asked)
            if not isinstance(found, int):
                for place, asks in enumerate(asked):
                    if isinstance(asks, CompiledNetwork):
                        self._members[place].count_passes(self._search.reads(place))
                return found
            tokens.append(found)

    def _cell(self, kind: Cell) -> int:
        cell = self._cells.get(kind)
        if cell is None:
            cell = sum(self._digit[name] * (sureness + MOST_DOUBLINGS + 1) for name, sureness in kind)
            self._cells[kind] = cell
        return cell

    def _named(self, cell: int) -> str:
        if (known := self._names.get(cell)) is not None:
            return known
        named = "+".join(name for name, digit in self._digit.items() if cell // digit % SURENESSES)
        self._names[cell] = named
        return named


def merged_search(members: Sequence[object], sure: float, apart: bool, top: int) -> CompiledSearch | None:
    """For these members; None where some cannot be asked like this. The rest is as for `GuessSearch`."""
    able = [member for member in members if isinstance(member, CompiledDrafter)]
    if len(able) != len(members) or not 0 < len(able) <= MOST_MEMBERS:
        return None
    try:
        return CompiledSearch(
            able, [member.proposer for member in able], GuessSearch(len(able), sure, apart=apart, top=top)
        )
    except NativeUnavailable:
        return None


def _lone_search(drafter: CompiledDrafter) -> CompiledSearch | None:
    """For one drafter, whose guesses are as likely as it says; None where there is no compiler."""
    try:
        search = GuessSearch(1, NEVER_SURE, learns=False)
        return CompiledSearch((weakref.proxy(drafter),), (drafter.proposer,), search)
    except NativeUnavailable:
        return None
