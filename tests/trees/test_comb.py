"""A comb asks about one node at each depth and keeps what is worth most of the chain and its siblings."""

from __future__ import annotations

import itertools
import math

import pytest
from contracts.kit import context_for, make_policy
from contracts.proposing import Proposing

from specchat.core.budget import Budget
from specchat.core.tree import ROOT, Guess
from specchat.trees import TREE_POLICIES

RATES = [0.5, 0.2, 0.1, 0.05]


def guesses(tree, node, width, context):
    """The rates depend on the rank alone; tokens tell the ranks apart."""
    return [Guess(10 + rank, logprob=math.log(rate)) for rank, rate in enumerate(RATES[:width])]


def comb(budget, drafter=None):
    return make_policy(TREE_POLICIES["comb"]).grow(drafter or Proposing(guesses), context_for(), budget)


@pytest.mark.parametrize("nodes", range(1, 9))
def test_it_keeps_the_nodes_of_most_worth_among_the_chain_and_its_siblings(nodes):
    depth = 3
    tree = comb(Budget(nodes, depth, 4))
    chain = [0.5**length for length in range(depth)]
    worths = sorted((before * rate for before, rate in itertools.product(chain, RATES)), reverse=True)
    kept = [math.prod(RATES[t - 10] for t in tree.path_tokens(node)) for node in range(1, len(tree))]
    assert sorted(kept, reverse=True) == pytest.approx(worths[:nodes])


def test_siblings_have_no_children():
    tree = comb(Budget(20, 4, 3))
    for node in range(1, len(tree)):
        assert tree.tokens[node] == 10 or not tree.children(node)
    assert max(tree.depths) == 4
    assert len(tree.children(ROOT)) == 3


def test_it_asks_about_one_node_at_each_depth():
    drafter = Proposing(guesses)
    comb(Budget(40, 5, 4), drafter)
    assert [len(asked) for asked in drafter.asked] == [1] * 5


def test_it_asks_no_further_where_no_deeper_node_could_stay():
    drafter = Proposing(guesses)
    comb(Budget(40, 9, 4, prices=(0.2,)), drafter)
    assert len(drafter.asked) == 3, "below 0.5 ** 3 nothing is worth 0.2"


def test_with_one_child_a_node_it_is_a_chain():
    assert comb(Budget(5, 4, 1)).parents == [-1, 0, 1, 2, 3]
