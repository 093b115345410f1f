"""A tree while it grows: what every node is worth, which guesses earn their row, and what stays of them in the end."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from specchat.core.budget import Budget
from specchat.core.context import Context
from specchat.core.seams import Drafter, Proposal
from specchat.core.tree import ROOT, DrawKind, Guess, TokenTree
from specchat.trees.guess_probabilities import acceptance_probabilities, point_probability, probability_once_drawn


@dataclass(slots=True)
class _Place:
    """A place below `parent` that its worth competes for; several point guesses of one token share it."""

    worth: float
    parent: int
    guesses: list[Guess]


class Growth:
    """Every guess considered so far, and the tree of those that may still earn a row.

    A guess's worth is the product of the probabilities down to it. In the end the guesses are sorted by worth, and the
    n-th best stays if its worth is at least the budget's n-th price. All policies apply prices in this way. Worth never
    grows with depth and prices never fall, so no child stays without its parent. Whether a sampled draw stays never
    depends on its token: what grows below the token is worth no more than the draw itself (see `best_first`).
    """

    def __init__(self, context: Context, budget: Budget, floor: float = 0.0, decay: float = 1.0) -> None:
        """The root alone.

        Args:
            floor: guesses worth less than this get no place, whatever the prices.
            decay: factor on the worth of a guess for every level it lies below the root.
        """
        self.tree = TokenTree(context.root, context.vocab_size)
        self._context = context
        self._budget = budget
        self._floor = floor
        self._decay = decay
        self._places: list[_Place] = []
        self._ranked: list[float] = []  # the N largest worths, negative: the largest first
        self._beaten = -1.0  # the N-th largest worth, where there are so many
        self._value: dict[int, float] = {ROOT: 1.0}  # what a sure child of this node would be worth

    @property
    def room(self) -> int:
        """How many more places the budget has, if all of them are to stay."""
        return self._budget.nodes - len(self._places)

    def worth(self, node: int) -> float:
        """What a child of this node would be worth if it were certain."""
        return self._value[node]

    def may_have_children(self, node: int) -> bool:
        """Whether a child of this node could stay, if nothing better came any more."""
        return self.tree.depths[node] < self._budget.depth and self._pays(self._worth_below(node))

    def ask(self, drafter: Drafter, nodes: Sequence[int], width: int) -> Proposal:
        """What the drafter proposes below these nodes, with a pass of a draft model only where that may pay.

        One pass serves all of them, so the node of most worth decides. Nothing that it brings is worth more than that
        node, so whether a sampled draw stays does not depend on its token here either.
        """
        context, most = self._context, max(self._value[node] for node in nodes)
        if context.passes and most < self._budget.pass_price:
            context.budget = dataclasses.replace(context.budget, passes=False)
        return drafter.propose(self.tree, nodes, width, context)

    def consider(self, parent: int, guesses: Sequence[Guess]) -> dict[int, int]:
        """Give every guess a place to compete with that is not beaten already.

        Returns:
            Rank among the guesses → node, of the nodes that are new.
        """
        if not [guess for guess in guesses if guess.kind is not DrawKind.POINT]:
            return self._consider_points(parent, guesses)
        value = self._worth_below(parent)
        points: dict[int, _Place] = {}
        new: dict[int, int] = {}
        for rank, (guess, chance) in enumerate(zip(guesses, acceptance_probabilities(guesses), strict=True)):
            worth, sampled = value * chance, guess.kind is not DrawKind.POINT
            if not sampled and guess.token in points:
                points[guess.token].guesses.append(guess)
                self.tree.add(parent, guess)
            elif self._pays(worth):
                below = worth * probability_once_drawn(guesses, rank) if sampled else worth
                place, child = self._take_place(parent, guess, worth, below)
                if child is not None:
                    new[rank] = child
                if not sampled:
                    points[guess.token] = place
        return new

    def _consider_points(self, parent: int, guesses: Sequence[Guess]) -> dict[int, int]:
        """The same where no guess is a sampled draw: most are beaten, and that is told first."""
        value = self._worth_below(parent)
        points: dict[int, _Place] = {}
        new: dict[int, int] = {}
        # A little below what is beaten: the rounding of the logarithm decides nothing.
        least = math.log(self._beaten / value) - 1e-6 if 0.0 < self._beaten < value else -math.inf
        for rank, guess in enumerate(guesses):
            if guess.logprob is not None and guess.logprob < least and guess.token not in points:
                continue
            worth = value * point_probability(guess, rank)
            if guess.token in points:
                points[guess.token].guesses.append(guess)
                self.tree.add(parent, guess)
            elif worth > self._beaten and self._pays(worth):
                points[guess.token], child = self._take_place(parent, guess, worth, worth)
                if child is not None:
                    new[rank] = child
        return new

    def best_tree(self) -> TokenTree:
        """The places that earn their rows, of equals the earlier ones, as a frozen tree.

        Of equals the parent was considered before its children, so no child comes without its parent.
        """
        if not self._places:
            return self.tree.freeze()
        order = sorted(range(len(self._places)), key=lambda i: -self._places[i].worth)[: self._budget.nodes]
        paying = itertools.takewhile(
            lambda at: self._places[at[1]].worth >= self._budget.price(at[0]), enumerate(order, 1)
        )
        kept = sorted(index for _, index in paying)
        return self.tree.freeze() if len(kept) == len(self._places) else self._only(kept)

    def _only(self, kept: Sequence[int]) -> TokenTree:
        """A tree of these places alone."""
        tree = TokenTree(self._context.root, self._context.vocab_size)
        node_of = {ROOT: ROOT}
        for index in kept:
            place = self._places[index]
            for guess in place.guesses:
                child = self.tree.child(place.parent, guess.token)
                assert child is not None, "every place has its node in the tree that grew"
                node_of[child] = tree.add(node_of[place.parent], guess)
        return tree.freeze()

    def _worth_below(self, node: int) -> float:
        """The worth of a child of this node that is certain, a level deeper."""
        return self._value[node] * self._decay

    def _pays(self, worth: float) -> bool:
        """Whether a place of this worth could be among the N, and earn its row, if nothing better came any more."""
        rank = bisect.bisect_right(self._ranked, -worth) + 1
        return rank <= self._budget.nodes and worth >= self._floor and worth >= self._budget.price(rank)

    def _take_place(self, parent: int, guess: Guess, worth: float, below: float) -> tuple[_Place, int | None]:
        """A place of this worth, and the guess's node if it is new; `below` is what a certain child of it is worth."""
        place = _Place(worth, parent, [guess])
        self._places.append(place)
        bisect.insort(self._ranked, -worth)
        del self._ranked[self._budget.nodes :]
        if len(self._ranked) == self._budget.nodes:
            self._beaten = -self._ranked[-1]
        size = len(self.tree)
        child = self.tree.add(parent, guess)
        self._value[child] = max(below, self._value.get(child, 0.0))
        return place, child if child == size else None
