"""Sequoia's tree is the optimum that trying all trees finds, for rates and costs that it measures itself."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
from contracts.kit import Always, context_for, make_policy, make_rule, plain_text, scripted_target, speak
from contracts.proposing import Proposing, counting_up
from trees.laws import every_tree

from specchat.acceptance import ACCEPTANCE_RULES
from specchat.core.budget import Budget
from specchat.core.round import Round, RoundTimings, Verdict
from specchat.core.tree import ROOT, Guess, TokenTree
from specchat.decoding.speculate import Speculator
from specchat.trees import TREE_POLICIES
from specchat.trees.sequoia import OptimalShapes

FALLING, RISING = (0.5, 0.2, 0.1), (0.1, 0.3, 0.45)


def sequoia(**options):
    return make_policy(TREE_POLICIES["sequoia"], **options)


def worth(path, rates):
    return math.prod(rates[rank] for rank in path)


def rank_paths(children):
    return {(*path, rank) for path, count in children.items() for rank in range(count)}


@pytest.mark.parametrize("rates", [FALLING, RISING, (0.2, 0.05, 0.6)], ids=str)
@pytest.mark.parametrize("nodes", range(1, 8))
def test_no_tree_of_as_many_nodes_and_levels_is_worth_more(nodes, rates):
    shapes = OptimalShapes(rates, nodes, 3)
    for depth in (1, 2, 3):
        best = max(sum(worth(path, rates) for path in tree) for tree in every_tree(min(nodes, 3**depth), depth, 3))
        found = rank_paths(shapes.children(nodes, depth))
        assert len(found) <= nodes
        assert max(map(len, found)) <= depth
        assert shapes.values[depth][nodes] == pytest.approx(best)
        assert sum(worth(path, rates) for path in found) == pytest.approx(best)


def test_levels_that_no_tree_would_use_are_not_worked_out():
    shapes = OptimalShapes(FALLING, 3, 9)
    assert all(value is shapes.values[4] for value in shapes.values[5:])
    assert all(shapes.children(3, depth) == shapes.children(3, 3) for depth in range(4, 10))


def test_where_rates_rise_the_best_rank_first_is_not_the_optimum():
    found = rank_paths(OptimalShapes(RISING, 4, 3).children(4, 3))
    assert {(0,), (1,), (2,)} < found, "the last rank stands most often, and needs the others"
    assert sum(worth(path, RISING) for path in found) > sum(worth((0,) * n, RISING) for n in (1, 2, 3))


def round_of(tree, path, rows_s, level_s, budget):
    verdict = Verdict(path, 0, tree)
    timings = RoundTimings(level_s * max(tree.depths), rows_s * len(tree) + 0.01)
    return Round(0, 1, [1], budget, tree, None, verdict, verdict.emitted, timings=timings)


def taught(rows_s, level_s, budget, rounds=40, **options):
    """A policy that has seen rounds of known costs in which nothing stood or the best guess did, in turn."""
    policy = sequoia(**options)
    for number in range(rounds):
        tree = policy.grow(Proposing(counting_up), context_for(), budget)
        path = (tree.children(ROOT)[0],) if number % 2 else ()
        policy.observe(round_of(tree, path, rows_s, level_s, budget))
    return policy


@pytest.mark.parametrize(("rows_s", "level_s"), [(0.0, 0.0), (1e-4, 0.0), (1e-3, 0.0), (1e-3, 2e-3), (5e-3, 1e-3)])
def test_its_size_has_the_most_tokens_per_second_of_all_sizes(rows_s, level_s):
    budget = Budget(24, 5, 4)
    policy = taught(rows_s, level_s, budget, relearn=1)
    shapes = OptimalShapes(policy.rates(4), 24, 5)
    speeds = {
        (n, d): (1 + shapes.values[d][n]) / (0.01 + rows_s * (1 + n) + level_s * d)
        for n in range(1, 25)
        for d in range(1, 6)
    }
    nodes, depth = max(speeds, key=lambda size: speeds[size])
    tree = policy.grow(Proposing(counting_up), context_for(), budget)
    assert speeds[tree.drafted, max(tree.depths)] == pytest.approx(speeds[nodes, depth], rel=1e-3)


def test_dear_rows_and_dear_levels_make_smaller_trees():
    budget = Budget(24, 5, 4)
    trees = [
        taught(*costs, budget).grow(Proposing(counting_up), context_for(), budget)
        for costs in ((1e-5, 0.0), (2e-3, 0.0), (1e-5, 3e-2))
    ]
    cheap, dear_rows, dear_levels = trees
    assert dear_rows.drafted < cheap.drafted
    assert max(dear_levels.depths) < max(cheap.depths)


def test_with_prices_the_controller_decides_about_size():
    policy = taught(5e-2, 0.0, Budget(24, 5, 4))
    free, priced = Budget(24, 5, 4), Budget(24, 5, 4, prices=(0.0,))
    assert policy.grow(Proposing(counting_up), context_for(), free).drafted < 24
    assert policy.grow(Proposing(counting_up), context_for(), priced).drafted == 24


def test_rates_are_counted_where_the_target_was_asked():
    policy, tree = sequoia(rates="0.5,0.5"), TokenTree(1, 9)
    first, second = tree.add(ROOT, Guess(3)), tree.add(ROOT, Guess(4))
    below = tree.add(second, Guess(5))
    tree.add(first, Guess(6))
    for _ in range(1000):
        policy.observe(round_of(tree.freeze(), (second, below), 0.0, 0.0, Budget(4, 2, 2)))
    best, other = policy.rates(2)
    assert best == pytest.approx(0.5, abs=0.02), "the first guess failed at the root and stood below the second"
    assert other == pytest.approx(1.0, abs=0.02)


def test_nodes_move_to_the_rank_that_stands_and_the_text_stays():
    told = plain_text(scripted_target(), 200)

    def second_is_right(tree, node, width, context):
        at = len(context.history) - context.prompt_tokens + tree.depths[node]
        right = told[at] if context.history[context.prompt_tokens :] == told[: at - tree.depths[node]] else 0
        return [Guess((right + 1) % context.vocab_size), Guess(right)][:width]

    policy = sequoia(relearn=1)
    observe = policy.observe
    policy.observe = lambda round: observe(replace(round, timings=RoundTimings(1e-4, 0.01 + 1e-3 * round.rows)))
    parts = (Proposing(second_is_right), policy, make_rule(ACCEPTANCE_RULES["follow"]), Always(Budget(6, 3, 2)))
    text, rounds = speak(Speculator(scripted_target(), *parts), 120, context_for())
    assert text == told[:120]
    assert policy.rates(2)[1] > 0.8 > 0.2 > policy.rates(2)[0]
    last = [round.tree for round in rounds[-10:]]
    assert all(len(tree.children(ROOT)) == 2 for tree in last)
    assert Counter(len(tree.children(tree.children(ROOT)[0])) for tree in last)[0] == 10, "nothing below the wrong one"
