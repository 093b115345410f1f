"""Masks stand where they are worth most, by how likely each node is the last one accepted."""

from __future__ import annotations

import itertools
import math
import operator
import random

import pytest
import torch

from specchat.core.tree import ROOT, Guess, TokenTree
from specchat.drafters import mask_rows
from specchat.drafters.mask_rows import MaskStates, RowPrice, last_accepted, last_of_likeliest, likeliest_places


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
    placed = likeliest_places(tree, GAINS, rows)
    assert sum(placed.values()) == min(rows, 3 * len(tree))
    best = 0.0
    for counts in itertools.product(range(4), repeat=len(tree)):
        if sum(counts) <= rows:
            best = max(best, worth(tree, dict(enumerate(counts))))
    assert worth(tree, placed) == pytest.approx(best)
    worst = likeliest_places(tree, GAINS[:1], 1)
    assert worth(tree, {}) == 0.0 < worth(tree, worst)


def test_where_trees_follow_one_another_the_share_of_each_state_is_that_of_its_markov_chain():
    """A state is how many masks the last accepted node carried: the next tree is a chain of so many guesses."""
    rates, rows = [0.7, 0.6, 0.5], 5
    trees = [tree_of(*((depth, rates[depth]) for depth in range(state))) for state in range(len(rates) + 1)]
    placed = [likeliest_places(tree, MaskStates(3).gains(rates), rows) for tree in trees]
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


def chain_of(rates, placing):
    """Moves between states, and tokens of each state's round, where a state's tree is a chain of so many guesses."""
    trees = [tree_of(*((depth, rates[depth]) for depth in range(state))) for state in range(len(rates) + 1)]
    moves = torch.zeros(len(trees), len(trees), dtype=torch.float64)
    tokens = torch.zeros(len(trees), dtype=torch.float64)
    for state, tree in enumerate(trees):
        placed = placing(tree)
        for node, chance in enumerate(last_accepted(tree)):
            moves[state, placed.get(node, 0)] += chance
            tokens[state] += chance * (1 + tree.depths[node])
    return moves, tokens


def tokens_a_round(rates, placing):
    moves, tokens = chain_of(rates, placing)
    return float(torch.linalg.matrix_power(moves, 400)[0] @ tokens)


def test_what_states_are_worth_is_what_rounds_bring_in_the_long_run(monkeypatch):
    """The worths that were learnt from simulated rounds, against those from following the chain for long."""
    rates, rows = [0.8, 0.7, 0.6], 3
    moves, tokens = chain_of(rates, lambda tree: likeliest_places(tree, [0.8, 0.56, 0.336], rows))
    steady, worth = float(torch.linalg.matrix_power(moves, 400)[0] @ tokens), torch.zeros(4, dtype=torch.float64)
    for _ in range(400):
        worth = tokens - steady + moves @ worth
    monkeypatch.setattr(mask_rows, "_MEMORY", 1.0)
    states, made, state = MaskStates(3), torch.Generator().manual_seed(2), 0
    for _ in range(6000):
        # Every state is begun in as often, so that those that are rare in the long run are known too.
        state = int(torch.randint(4, (), generator=made))
        after = int(torch.multinomial(moves[state], 1, generator=made))
        states.move(state, after, tokens[state])
    found = states.gains([0.5, 0.5, 0.5])
    assert found == pytest.approx(worth.diff().tolist(), abs=0.06)
    assert found[0] != pytest.approx(0.8, abs=0.1), "more than the guess that the mask makes itself"


def learnt_placing(rates, rows):
    """The placement by worths that were learnt while rounds followed one another, begun with what rates claim."""
    states, made, state = MaskStates(len(rates)), torch.Generator().manual_seed(3), 0
    for _ in range(30):
        gains = states.gains(rates)
        moves, tokens = chain_of(rates, lambda tree, gains=gains: likeliest_places(tree, gains, rows))
        for _ in range(60):
            after = int(torch.multinomial(moves[state], 1, generator=made))
            states.move(state, after, tokens[state])
            state = after
    gains = states.gains(rates)
    return lambda tree: likeliest_places(tree, gains, rows)


@pytest.mark.parametrize(("rates", "rows"), [([0.8, 0.7, 0.6], 3), ([0.6, 0.5, 0.4], 4), ([0.9, 0.5, 0.5], 2)])
def test_masks_that_move_with_the_tree_bring_more_than_as_many_in_fixed_or_random_places(rates, rows, monkeypatch):
    monkeypatch.setattr(mask_rows, "_MEMORY", 0.998)
    dynamic = tokens_a_round(rates, learnt_placing(rates, rows))
    myopic = list(itertools.accumulate(rates, operator.mul))
    assert dynamic >= tokens_a_round(rates, lambda tree: likeliest_places(tree, myopic, rows)) - 1e-9
    for first in range(4):  # three behind the root, the first node, …, the rest behind the nodes after it
        counts = {first + place: min(3, max(0, rows - 3 * place)) for place in range(3)}
        fixed = tokens_a_round(rates, lambda tree, counts=counts: {n: c for n, c in counts.items() if n < len(tree)})
        assert dynamic > fixed
    made = random.Random(4)

    def anywhere(tree):
        slots = [node for node in range(len(tree)) for _ in range(3)]
        taken = made.sample(slots, min(rows, len(slots)))
        return {node: taken.count(node) for node in taken}

    found = [tokens_a_round(rates, anywhere) for _ in range(20)]
    assert dynamic > 1.015 * sum(found) / len(found)
    assert dynamic > 0.995 * max(found), "by chance the best placement may be among them"


@pytest.mark.parametrize("row_s", [0.0, 0.02, 0.1, 0.4, 3.0])
@pytest.mark.parametrize("tree", TREES.values(), ids=TREES.keys())
def test_there_are_as_many_rows_as_bring_most_tokens_a_second(tree, row_s):
    """By a pass of 1 s and so much more for each row, against every number of rows."""
    most = 3 * len(tree)

    def speed(rows):
        return (2.0 + worth(tree, likeliest_places(tree, GAINS, rows))) / (1.0 + row_s * (len(tree) + rows))

    best = max(range(most + 1), key=speed)
    price = RowPrice()
    for rows in (len(tree), len(tree) + most, len(tree) + best):
        price.add(rows, 1.0 + row_s * rows, 1.0, 0)
    assert price.tokens == pytest.approx(0.0)
    price = RowPrice()
    for rows in (2, 40, 7):  # at the best speed, whatever the passes are
        time = 1.0 + row_s * rows
        price.add(rows, time, time, speed(best) * time)
    placed = likeliest_places(tree, GAINS, 100, price.tokens)
    assert speed(sum(placed.values())) == pytest.approx(speed(best))


def test_the_price_of_a_row_is_not_known_before_passes_differ():
    price = RowPrice()
    for _ in range(3):
        price.add(5, 1.0, 1.0, 2)
    assert price.tokens is None


def test_behind_the_last_node_of_the_likeliest_path():
    assert last_of_likeliest(TREES["wide"], 3) == {3: 3}
    assert last_of_likeliest(tree_of(), 2) == {ROOT: 2}
    assert last_of_likeliest(TREES["chain"], 0) == {}
