"""A tree that grows from rows of numbers is the one that grows from guesses, and the one that its definition gives."""

from __future__ import annotations

import itertools
import math

import pytest
from contracts.proposing import Proposing
from trees.laws import POINT, V, context, law, paths_of, value

from specchat.core.budget import Budget
from specchat.core.seams import Drafter
from specchat.core.tree import ROOT, Guess, PointRows
from specchat.trees.growth import Growth, search


class InRows(Drafter):
    """What another drafter proposes, in rows: of logits, if a total is given, which is added to each node's."""

    def __init__(self, inner, total=0.0):
        self._inner, self._total = inner, total

    def propose(self, tree, frontier, width, context):
        said = self._inner.propose(tree, frontier, width, context)
        tokens = [[guess.token for guess in guesses] for guesses in said]
        values = [[guess.logprob + self._total for guess in guesses] for guesses in said]
        return PointRows(tokens, values, [self._total] * len(said), "rows")


def likeliest(seed):
    """The tokens of a law from the likeliest to the least likely."""

    def guesses(tree, node, width, context):
        q = law(tree.path_tokens(node), seed)
        ranked = q.sort(descending=True).indices.tolist()[:width]
        return [Guess(token, logprob=math.log(q[token]), proposer="rows") for token in ranked]

    return Proposing(guesses)


def defined(seed, budget, floor):
    """The paths of the tree by the definition: all guesses there are, sorted by worth, as long as they pay."""
    paths = (p for depth in range(1, budget.depth + 1) for p in itertools.product(range(V), repeat=depth))
    ranked = sorted((p for p in paths if value(p, seed) >= floor), key=lambda p: -value(p, seed))[: budget.nodes]
    paying = itertools.takewhile(lambda at: value(at[1], seed) >= budget.price(at[0]), enumerate(ranked, 1))
    return {path for _, path in paying}


BUDGETS = [
    Budget(1, 3, V),
    Budget(9, 3, V),
    Budget(30, 3, V, prices=(0.0, 0.02, 0.05, 0.1)),
    Budget(30, 4, V, prices=tuple(0.002 * i for i in range(30))),
]


@pytest.mark.parametrize("floor", [0.0, 0.04])
@pytest.mark.parametrize("budget", BUDGETS, ids=["one", "nine", "steep", "rising"])
def test_rows_and_guesses_grow_the_tree_of_the_definition(budget, floor):
    for seed in range(3):
        drafters = likeliest(seed), InRows(likeliest(seed)), InRows(likeliest(seed), total=7.5)
        trees = [search(Growth(context(), budget, floor), drafter, V) for drafter in drafters]
        assert paths_of(trees[0]) == defined(seed, budget, floor)
        for tree in trees[1:]:
            assert (tree.tokens, tree.parents) == (trees[0].tokens, trees[0].parents)
            assert all(
                (ours.child, ours.guess.token, ours.guess.proposer) == (other.child, other.guess.token, "rows")
                and ours.guess.logprob == pytest.approx(other.guess.logprob)
                for node in range(len(tree))
                for ours, other in zip(tree.draws(node), trees[0].draws(node), strict=True)
            )


def test_guesses_of_one_level_that_beat_each_other_leave_the_best():
    budget = Budget(2, 1, 3)
    growth = Growth(context(), budget)
    chances = [0.2, 0.3, 0.25, 0.1]
    growth.consider(ROOT, [Guess(token, logprob=math.log(chance)) for token, chance in enumerate(chances)])
    assert growth.best_tree().tokens[1:] == [1, 2]


def test_rows_end_where_there_is_no_token_and_are_guesses_when_looked_at():
    rows = PointRows([[5, 6, 7], [8, 9, 1]], [[2.0, 1.0, -math.inf], [0.0, -1.0, -2.0]], [2.5, 0.0], "rows")
    assert [[guess.token for guess in guesses] for guesses in rows] == [[5, 6], [8, 9, 1]]
    assert rows[0][1] == Guess(6, POINT, None, -1.5, "rows")
    assert rows[1:] == [rows[1]]
    assert len(rows) == 2
