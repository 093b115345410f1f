"""A merge whose tree is grown in one call of compiled code, where all of its members can be asked by that."""

from __future__ import annotations

from collections.abc import Sequence

from specchat.compiled.build import NativeUnavailable
from specchat.core.compiled_guessing import AskedByCompiledCode, BestFirstShape, CompiledLookup, CompiledNetwork
from specchat.core.context import Context
from specchat.core.tree import TokenTree, point
from specchat.drafters.merged_guesses import Cell
from specchat.structures.guess_search import (
    MOST_DOUBLINGS,
    MOST_MEMBERS,
    MOST_WIDTH,
    SURENESSES,
    Found,
    GuessSearch,
)

_MOST_ROWS = 1024
"""Trees for which a network might read more are grown level by level."""


class MergedSearch:
    """Grows the tree that `trees.search` grows of a merge's proposals, and holds what both learn of acceptance."""

    def __init__(self, members: Sequence[AskedByCompiledCode], names: Sequence[str], sure: float) -> None:
        """Nothing learnt yet.

        Args:
            names: the members' as their guesses carry them, all different.
        """
        self._members = tuple(members)
        self._search = GuessSearch(len(members), sure)
        self._digit = {name: SURENESSES**place for place, name in enumerate(names)}
        self._names: dict[int, str] = {}  # of cells
        self._cells: dict[Cell, int] = {}
        self._grown = False

    def rate(self, kind: Cell, claimed: float) -> float:
        """As `LearntRates`."""
        return self._search.rate(self._cell(kind), claimed)

    def count(self, kind: Cell, right: bool) -> None:
        """As `LearntRates`."""
        self._search.count(self._cell(kind), right)

    def grow(self, context: Context, shape: BestFirstShape) -> TokenTree | None:
        """The frozen tree; None where it must be grown level by level."""
        budget = shape.budget
        rows = budget.nodes * budget.depth + 8
        if not 0 < budget.width <= MOST_WIDTH or not 0 < budget.nodes <= rows <= _MOST_ROWS or context.wants_q:
            return None
        found = self._found(context, shape, rows)
        if found is None:
            return None
        for place, member in enumerate(self._members):
            member.count_passes(self._search.reads(place))
        self._grown = True
        tree = TokenTree(context.root, context.vocab_size)
        for parent, token, cell, logprob in found:
            tree.add(parent, point(token, logprob, self._names.get(cell) or self._named(cell)))
        return tree.freeze()

    def learn(self, emitted: Sequence[int]) -> None:
        """Count which guesses were right, if this round's tree was grown here."""
        if self._grown:
            self._search.learn(emitted)
        self._grown = False

    def forget_round(self) -> None:
        """Forget this round's tree; what was learnt stays."""
        self._grown = False

    def _found(self, context: Context, shape: BestFirstShape, rows: int) -> Found | None:
        tokens = [context.root]
        while True:
            asked: list[CompiledLookup | CompiledNetwork] = []
            for member in self._members:
                asks = member.compiled(context, tokens, rows)
                if asks is None:
                    return None
                asked.append(asks)
            found = self._search.grow(context, shape, asked)
            if not isinstance(found, int):
                return found
            tokens.append(found)

    def _cell(self, kind: Cell) -> int:
        cell = self._cells.get(kind)
        if cell is None:
            cell = sum(self._digit[name] * (sureness + MOST_DOUBLINGS + 1) for name, sureness in kind)
            self._cells[kind] = cell
        return cell

    def _named(self, cell: int) -> str:
        named = "+".join(name for name, digit in self._digit.items() if cell // digit % SURENESSES)
        self._names[cell] = named
        return named


def merged_search(members: Sequence[object], numbers: dict[int, int], sure: float) -> MergedSearch | None:
    """For these members, of which some have numbers behind their names; None where some cannot be asked like this."""
    able = [member for member in members if isinstance(member, AskedByCompiledCode)]
    if len(able) != len(members) or not 0 < len(able) <= MOST_MEMBERS:
        return None
    names = [
        f"{member.proposer} {numbers[place]}" if place in numbers else member.proposer
        for place, member in enumerate(able)
    ]
    try:
        return MergedSearch(able, names, sure)
    except NativeUnavailable:
        return None
