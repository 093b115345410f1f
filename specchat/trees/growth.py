"""A tree while it grows: what every node is worth, which guesses earn their row, and what stays of them in the end.

With the search for the guesses of most worth, and how likely guesses are to stand.
"""

from __future__ import annotations

import bisect
import dataclasses
import heapq
import itertools
import math
import sys
from collections.abc import Iterable, Sequence
from math import exp

from specchat.core.budget import Budget
from specchat.core.context import Context
from specchat.core.seams import Drafter, Proposal
from specchat.core.tree import ROOT, DrawKind, Guess, PointRows, TokenTree, point

_Offer = tuple[float, float, int, list[Guess], int]
"""Guesses of one token that compete for a place: its worth, what a certain child would be worth, the parent, the
guesses, and the rank of the first among all guesses there. There are hundreds in a round, so it is a plain tuple."""


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
        self._worths: list[float] = []  # of every place that was taken, in the order in which they were
        self._taken: list[tuple[int, list[Guess]]] = []  # its parent, and its guesses: points of one token share it
        self._ranked: list[float] = []  # the N largest worths, negative: the largest first
        self._beaten = -1.0 if budget.nodes else math.inf  # the N-th largest worth, where there are so many
        self._value: dict[int, float] = {ROOT: 1.0}  # what a sure child of this node would be worth

    @property
    def room(self) -> int:
        """How many more places the budget has, if all of them are to stay."""
        return self._budget.nodes - len(self._worths)

    def worth(self, node: int) -> float:
        """The worth of a child of this node if it were certain."""
        return self._value[node]

    def may_have_children(self, node: int) -> bool:
        """Whether a child of this node could stay, if nothing better came any more."""
        return bool(self.that_may_have_children((node,)))

    def that_may_have_children(self, nodes: Iterable[int]) -> list[int]:
        """Those of the nodes of which a child could stay, if nothing better came any more."""
        depths, value, decay = self.tree.depths, self._value, self._decay
        deepest, pays = self._budget.depth, self._pays
        return [node for node in nodes if depths[node] < deepest and pays(value[node] * decay)]

    def ask(self, drafter: Drafter, nodes: Sequence[int], width: int) -> Proposal:
        """The drafter's guesses below these nodes, with a pass of a draft model only where that may pay.

        One pass serves all of them, so the node of most worth decides. Nothing that it brings is worth more than that
        node, so whether a sampled draw stays does not depend on its token here either.
        """
        context, most = self._context, max([self._value[node] for node in nodes])
        if context.passes and most < self._budget.pass_price:
            context.budget = dataclasses.replace(context.budget, passes=False)
        return drafter.propose(self.tree, nodes, width, context)

    def consider_all(self, parents: Sequence[int], proposal: Proposal, width: int) -> list[int]:
        """Let the first `width` guesses of each of these parents compete for places; returns the nodes that are new."""
        if isinstance(proposal, PointRows):
            offers = self._offers_of_rows(parents, proposal, width)
        else:
            each = zip(parents, proposal, strict=True)
            offers = [offer for parent, guesses in each for offer in self._offers(parent, guesses[:width])]
        return [child for child in self._take(offers) if child is not None]

    def consider(self, parent: int, guesses: Sequence[Guess]) -> dict[int, int]:
        """Let the guesses below a node compete for places.

        Returns:
            Rank among the guesses → node, of the nodes that are new.
        """
        offers = self._offers(parent, guesses)
        taken = zip(offers, self._take(offers), strict=True)
        return {offer[-1]: child for offer, child in taken if child is not None}

    def _offers(self, parent: int, guesses: Sequence[Guess]) -> list[_Offer]:
        """The guesses below a node that are not beaten already; point guesses of one token are one."""
        sure = self._value[parent] * self._decay
        # A little below what is beaten: the rounding of the logarithm decides nothing.
        least = math.log(self._beaten / sure) - 1e-6 if 0.0 < self._beaten < sure else -math.inf
        offers: list[_Offer] = []
        points: dict[int, list[Guess]] = {}  # by token
        left = 1.0  # the share that the draws so far leave
        for rank, guess in enumerate(guesses):
            token, kind, _, logprob, _, _ = guess
            if kind is not DrawKind.POINT:
                drawn = probability_once_drawn(guesses, rank)
                worth, below, left = sure * left, sure * left * drawn, left * (1.0 - drawn)
            elif token in points:
                points[token].append(guess)
                continue
            elif logprob is not None and logprob < least:
                continue  # decided without its worth: most guesses are beaten
            else:
                worth = below = sure * point_probability(guess, rank)
            if worth > self._beaten:
                offers.append((worth, below, parent, [guess], rank))
                if kind is DrawKind.POINT:
                    points[token] = offers[-1][3]
        return offers

    def _offers_of_rows(self, parents: Sequence[int], rows: PointRows, width: int) -> list[_Offer]:
        """The same for different points, the likeliest first: all guesses after a beaten one are beaten too."""
        offers: list[_Offer] = []
        value_of, decay, beaten, proposer = self._value, self._decay, self._beaten, rows.proposer
        for parent, (tokens, values, total) in zip(parents, rows.rows(), strict=True):
            sure = value_of[parent] * decay
            for rank, value in enumerate(values[:width]):
                logprob = value - total
                worth = sure * exp(logprob) if logprob < 0.0 else sure
                if worth <= beaten or logprob == -math.inf:
                    break
                offers.append((worth, worth, parent, [point(tokens[rank], logprob, proposer)], rank))
        return offers

    def _take(self, offers: Sequence[_Offer]) -> list[int | None]:
        """Places for the offers that may stay, unless better ones come; for each offer its node, if that is new."""
        ranked, most = self._ranked, self._budget.nodes
        for offer in offers:
            bisect.insort(ranked, -offer[0])
        if len(ranked) >= most > 0:
            del ranked[most:]
            self._beaten = -ranked[-1]
        found: list[int | None] = []
        for worth, below, parent, guesses, _ in offers:
            found.append(self._place(worth, below, parent, guesses) if self._may_stay(worth) else None)
        return found

    def _place(self, worth: float, below: float, parent: int, guesses: list[Guess]) -> int | None:
        """A place of this worth, and its node if that is new; `below` is what a certain child of it is worth."""
        self._worths.append(worth)
        self._taken.append((parent, guesses))
        tree, value = self.tree, self._value
        size = len(tree.tokens)
        for guess in guesses:
            child = tree.add(parent, guess)
        if child == size:
            value[child] = below
            return child
        value[child] = max(below, value[child])
        return None

    def best_tree(self) -> TokenTree:
        """The places that earn their rows, of equals the earlier ones, as a frozen tree.

        Of equals the parent was considered before its children, so no child comes without its parent.
        """
        if not self._worths:
            return self.tree.freeze()
        worths, budget = self._worths, self._budget
        kept = sorted(range(len(worths)), key=worths.__getitem__, reverse=True)[: budget.nodes]  # stable: see above
        if budget.prices:
            paying = itertools.takewhile(lambda at: worths[at[1]] >= budget.price(at[0]), enumerate(kept, 1))
            kept = [index for _, index in paying]
        return self.tree.freeze() if len(kept) == len(worths) else self._only(sorted(kept))

    def _only(self, kept: Sequence[int]) -> TokenTree:
        """A tree of these places alone."""
        tree = TokenTree(self._context.root, self._context.vocab_size)
        node_of = {ROOT: ROOT}
        for index in kept:
            parent, guesses = self._taken[index]
            for guess in guesses:
                child = self.tree.child(parent, guess.token)
                assert child is not None, "every place has its node in the tree that grew"
                node_of[child] = tree.add(node_of[parent], guess)
        return tree.freeze()

    def _may_stay(self, worth: float) -> bool:
        """Whether a place of this worth, which is counted, is among the N and earns its row, as far as is known."""
        if worth < self._beaten or worth < self._floor:
            return False
        budget = self._budget
        return not budget.prices or worth >= budget.price(bisect.bisect_left(self._ranked, -worth) + 1)

    def _pays(self, worth: float) -> bool:
        """Whether one more place of this worth would be among the N, and earn its row, if nothing better came."""
        if worth <= self._beaten or worth < self._floor:
            return False
        budget = self._budget
        return not budget.prices or worth >= budget.price(bisect.bisect_right(self._ranked, -worth) + 1)


def probability_once_drawn(guesses: Sequence[Guess], rank: int) -> float:
    """How likely a guess is to stand when it gets its turn, its token known: for what is to grow below it.

    For a draw without replacement that is its probability among the tokens its proposer had not drawn before.
    """
    guess = guesses[rank]
    probability = point_probability(guess, rank)
    if guess.kind is not DrawKind.WOR:
        return probability
    earlier = [i for i in range(rank) if guesses[i].kind is DrawKind.WOR and guesses[i].proposer == guess.proposer]
    left = 1.0 - sum(point_probability(guesses[i], i) for i in earlier)
    return min(1.0, probability / left) if left > probability else 1.0


def point_probability(guess: Guess, rank: int) -> float:
    """The probability that its drafter gives a guess; where it gives none, half for its first one, a quarter for its
    second, and so on."""
    if guess.logprob is not None:
        return min(1.0, math.exp(guess.logprob))
    return 0.5 ** (rank + 1)


_FEW = 4
"""Nodes per call where calls are cheap: fewer guesses that come to nothing, for a few more calls."""


def search(growth: Growth, drafter: Drafter, width: int, batch: int = 0, calls: int = sys.maxsize) -> TokenTree:
    """The frozen tree of the guesses of most worth.

    Args:
        growth: the root alone; it knows what a guess is worth and how many may stay.
        width: children a node may get.
        batch: nodes per call, those of most worth; 0: all that may have children where a call costs a pass, else a few.
        calls: how often the drafter may be asked.
    """
    unasked = [ROOT] if width > 0 else []
    passes, few = drafter.passes, batch
    while calls and (unasked := growth.that_may_have_children(unasked)):
        frontier = best(unasked, growth, few)
        asked = set(frontier)
        unasked = [node for node in unasked if node not in asked]
        unasked += growth.consider_all(frontier, growth.ask(drafter, frontier, width), width)
        calls -= 1
        if drafter.passes == passes:
            few = batch or _FEW  # asking costs no pass of a model, so ask about no more than needed
    return growth.best_tree()


def best(nodes: list[int], growth: Growth, count: int) -> list[int]:
    """The `count` nodes of most worth, in their order; all of them where `count` is 0."""
    if count == 0 or len(nodes) <= count:
        return nodes
    return sorted(heapq.nlargest(count, nodes, key=growth.worth))
