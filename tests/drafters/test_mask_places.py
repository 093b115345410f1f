"""Masks stand where they are worth most, by how likely each node is the last one accepted."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from specchat.core.tree import ROOT, Guess, TokenTree
from specchat.drafters.mask_rows import last_accepted, last_of_likeliest, likeliest_places


def tree_of(*nodes):
    """From (parent, probability) of each node."""
    tree = TokenTree(0, 50)
    for number, (parent, chance) in enumerate(nodes, 1):
        tree.add(parent, Guess(number, logprob=None if chance is None else math.log(chance)))
    return tree.freeze()


TREES = {
    "chain": tree_of((0, 0.7), (1, 0.5), (2, 0.9)),
    "wide": tree_of((0, 0.5), (0, 0.3), (1, 0.6), (1, 0.2), (2, 0.4)),
    "sure": tree_of((0, 1.0), (1, 0.999)),
    "silent": tree_of((0, None), (1, None)),
}
RATES = (0.6, 0.5, 0.25)
GAINS = [0.6, 0.3, 0.075]


def worth(tree, placed, gains=GAINS):
    """The mean number of guesses that will be right in the next round."""
    return sum(chance * sum(gains[: placed.get(node, 0)]) for node, chance in enumerate(last_accepted(tree)))


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES.keys())
def test_one_node_is_the_last_one_accepted(tree):
    assert sum(last_accepted(tree)) == pytest.approx(1.0)
    assert min(last_accepted(tree)) >= 0.0


def test_a_node_is_the_last_where_it_is_reached_and_none_of_its_children_is_right():
    assert last_accepted(TREES["wide"]) == pytest.approx([0.2, 0.1, 0.18, 0.3, 0.1, 0.12])


@pytest.mark.parametrize("rows", [1, 2, 4, 7, 100])
@pytest.mark.parametrize("tree", TREES.values(), ids=TREES.keys())
def test_no_other_choice_of_so_many_masks_is_worth_more(tree, rows):
    placed = likeliest_places(tree, RATES, rows)
    assert sum(placed.values()) == min(rows, 3 * len(tree))
    best = 0.0
    for counts in itertools.product(range(4), repeat=len(tree)):
        if sum(counts) <= rows:
            best = max(best, worth(tree, dict(enumerate(counts))))
    assert worth(tree, placed) == pytest.approx(best)
    worst = likeliest_places(tree, RATES[:1], 1)
    assert worth(tree, {}) == 0.0 < worth(tree, worst)


def test_where_trees_follow_one_another_the_share_of_each_state_is_that_of_its_markov_chain():
    """A state is how many masks the last accepted node carried: the next tree is a chain of so many guesses."""
    rates, rows = [0.7, 0.6, 0.5], 5
    trees = [tree_of(*((depth, rates[depth]) for depth in range(state))) for state in range(len(rates) + 1)]
    placed = [likeliest_places(tree, rates, rows) for tree in trees]
    moves = torch.zeros(4, 4, dtype=torch.float64)
    for state, tree in enumerate(trees):
        for node, chance in enumerate(last_accepted(tree)):
            moves[state, placed[state].get(node, 0)] += chance
    steady = torch.linalg.matrix_power(moves, 200)[0]
    made, state, seen = torch.Generator().manual_seed(1), 0, torch.zeros(4, dtype=torch.float64)
    for chances in torch.rand(40_000, 4, generator=made).tolist():
        node = 0
        while node < state and chances[node] < rates[node]:
            node += 1
        state = placed[state].get(node, 0)
        seen[state] += 1
    torch.testing.assert_close(seen / seen.sum(), steady, atol=0.015, rtol=0)
    assert 0.02 < float(steady[:3].sum()) < 0.98, "several states occur"


def test_behind_the_last_node_of_the_likeliest_path():
    assert last_of_likeliest(TREES["wide"], 3) == {3: 3}
    assert last_of_likeliest(tree_of(), 2) == {ROOT: 2}
    assert last_of_likeliest(TREES["chain"], 0) == {}
