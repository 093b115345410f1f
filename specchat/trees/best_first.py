"""Best first: of all guesses the ones that are most likely to be reached and to stand."""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from specchat.core.budget import Budget
from specchat.core.context import Context
from specchat.core.request import LayerHook
from specchat.core.seams import Drafter
from specchat.core.tree import ROOT, DrawKind, Guess, TokenTree
from specchat.trees.options import BestFirstOptions
from specchat.trees.worth import after_drawing, chances

_FEW = 4
"""Nodes per call where calls are cheap: fewer guesses that come to nothing, for a few more calls."""


class BestFirst:
    """The N guesses of most worth, where a guess is worth the product of the probabilities down to it.

    Worth never grows downwards, so taking the best N one after another, parents first, gives the tree with the
    largest sum of worths, which is the expected number of accepted tokens as far as the drafter knows. A node is
    expanded only while a child of it could still be among the N. A draft model is asked about whole levels, so it runs
    at most `depth` passes; where asking costs no pass, the best few are asked about at a time. The tree is the same:
    the one that a heap with one call per node would grow.

    Sampled draws have the worth that is left for them *before* they are drawn: of draws at a node worth v, the first
    is worth v, and each leaves (1 − R) of its worth to the next and R to what grows below it, R being its own
    probability when its turn came. Whatever a draw's token brings about (its subtree, its next siblings) is worth no
    more than the draw, so it cannot push the draw out of the best N. So whether a draw stays never depends on its
    token, and it keeps the distribution it was drawn from. The same holds for the budget's prices, because they never
    fall: the n-th best stays if its own worth pays the n-th price.

    Reference: DySpec, arXiv:2410.11744; for points SpecExec's search, arXiv:2406.02532. Differs: the search runs
    level by level over all that may still matter, and prunes to N at the end, instead of one heap pop per call or a
    threshold fixed beforehand.
    """

    keeps_draws: Final = True
    taps: Sequence[int] = ()

    def __init__(self, options: BestFirstOptions) -> None:
        self._batch = options.batch
        self._floor = options.floor

    def hooks(self, tree: TokenTree) -> Sequence[LayerHook]:
        return ()

    def grow(self, drafter: Drafter, context: Context, budget: Budget) -> TokenTree:
        search = _Search(TokenTree(context.root, context.vocab_size), budget, max(self._floor, budget.floor))
        passes, batch = drafter.passes, self._batch
        while frontier := search.frontier(batch):
            proposal = drafter.propose(search.tree, frontier, budget.width, context)
            for node, guesses in zip(frontier, proposal, strict=True):
                search.consider(node, guesses[: budget.width])
            if drafter.passes == passes:
                batch = self._batch or _FEW  # asking costs no pass of a model, so ask about no more than needed
        return search.best_tree(TokenTree(context.root, context.vocab_size))


@dataclass
class _Place:
    """A place below `parent` that its worth competes for; several point guesses of one token share it."""

    worth: float
    parent: int
    guesses: list[Guess]


class _Search:
    """Everything proposed so far, and what of it may still matter."""

    def __init__(self, tree: TokenTree, budget: Budget, floor: float) -> None:
        self.tree = tree
        self._budget = budget
        self._floor = floor
        self._places: list[_Place] = []
        self._ranked: list[float] = []  # the N largest worths, negative: the largest first
        self._value: dict[int, float] = {ROOT: 1.0}  # what a sure child of this node would be worth
        self._open: list[int] = [ROOT] if budget.nodes > 0 and budget.width > 0 else []

    def frontier(self, batch: int) -> list[int]:
        """The nodes to expand next: all that a child could get into the tree from, or the best `batch` of them."""
        self._open = [
            node for node in self._open if self.tree.depths[node] < self._budget.depth and self._pays(self._value[node])
        ]
        if batch and len(self._open) > batch:
            chosen = set(heapq.nlargest(batch, self._open, key=lambda node: self._value[node]))
        else:
            chosen = set(self._open)
        frontier = [node for node in self._open if node in chosen]
        self._open = [node for node in self._open if node not in chosen]
        return frontier

    def consider(self, parent: int, guesses: Sequence[Guess]) -> None:
        """Give every guess a place to compete with that is not beaten already."""
        value = self._value[parent]
        points: dict[int, _Place] = {}
        for rank, (guess, chance) in enumerate(zip(guesses, chances(guesses), strict=True)):
            worth, sampled = value * chance, guess.kind is not DrawKind.POINT
            if not sampled and guess.token in points:
                points[guess.token].guesses.append(guess)
            elif self._pays(worth):
                place = _Place(worth, parent, [guess])
                self._places.append(place)
                bisect.insort(self._ranked, -worth)
                del self._ranked[self._budget.nodes :]
                self._enter(parent, guess, worth * after_drawing(guesses, rank) if sampled else worth)
                if not sampled:
                    points[guess.token] = place

    def best_tree(self, tree: TokenTree) -> TokenTree:
        """The N places of most worth, earlier ones first where they are equal, put into an empty tree.

        Of equals the parent was considered before its children, so no child comes without its parent.
        """
        order = sorted(range(len(self._places)), key=lambda i: (-self._places[i].worth, i))
        node_of = {ROOT: ROOT}
        ranked = enumerate((self._places[index].worth for index in order), 1)
        count = sum(1 for _ in itertools.takewhile(lambda at: at[1] >= self._budget.price(at[0]), ranked))
        for index in sorted(order[: min(count, self._budget.nodes)]):
            place = self._places[index]
            for guess in place.guesses:
                child = self.tree.child(place.parent, guess.token)
                assert child is not None, "every place has its node in the tree that was searched"
                node_of[child] = tree.add(node_of[place.parent], guess)
        return tree.freeze()

    def _pays(self, worth: float) -> bool:
        """Whether a place of this worth could be among the N, and earn its row, if nothing better came any more."""
        rank = bisect.bisect_right(self._ranked, -worth) + 1
        return rank <= self._budget.nodes and worth >= self._floor and worth >= self._budget.price(rank)

    def _enter(self, parent: int, guess: Guess, value: float) -> None:
        size = len(self.tree)
        child = self.tree.add(parent, guess)
        if child == size:
            self._open.append(child)
        self._value[child] = max(value, self._value.get(child, 0.0))
