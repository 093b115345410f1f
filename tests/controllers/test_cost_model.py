"""The cost model: the line follows a change, ranks are counted where they were asked, the size is the best one."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from contracts.kit import reply, scripted_target
from goodput_rounds import a_round as chain_round
from goodput_rounds import costs
from rows import each_row

from specchat.controllers.cost_model import CostModel
from specchat.controllers.options import CostModelOptions
from specchat.core.budget import Budget
from specchat.core.context import Context
from specchat.core.costs import Costs
from specchat.core.reading import HeadTensors, Reading
from specchat.core.round import Round, RoundTimings, Verdict
from specchat.core.tree import ROOT, Guess, TokenTree

V = 50
CONTEXT = Context([1, 2, 3], 2, V)


def full_tree(width, depth):
    """Every node has `width` children; a child's token is its rank."""
    tree, level = TokenTree(0, V), [ROOT]
    for _ in range(depth):
        level = [tree.add(node, Guess(rank)) for node in level for rank in range(width)]
    return tree.freeze()


def a_round(tree, ranks, verify_s, draft_s=0.0, planned=None):
    """A round in which the guesses of these ranks stood, one below the other."""
    path = tree.follow(ranks)
    reading = Reading(tuple(range(len(tree))), HeadTensors(torch.zeros(len(tree), V)), frozenset(range(len(tree))))
    verdict = Verdict(path, 40, tree)
    budget = Budget(tree.drafted if planned is None else planned, 4, 4)
    return Round(0, 3, [1, 2, 3], budget, tree, reading, verdict, verdict.emitted,
                 timings=RoundTimings(draft_s, verify_s))  # fmt: skip


def taught(base, slope, hits, rounds=200, width=3, depth=3, level_s=0.0, given=None):
    """A controller that has seen rounds which took base + slope · rows; `hits` says how often each rank stood.

    Every rank comes up in turn, at each depth alike, as often as its share says.
    """
    controller = given or CostModel(CostModelOptions(memory=256), Budget(30, depth, width))
    tree = full_tree(width, depth)
    outcome = [rank for rank, share in enumerate(hits) for _ in range(round(10 * share))]
    outcome += [9] * (10 - len(outcome))
    for turn in range(rounds):
        ranks = []
        for level in range(depth):
            ranks.append(outcome[(7 * turn + 3 * level * turn + level) % 10])
            if ranks[-1] == 9:
                break
        some = tree if turn % 3 else full_tree(width, 1)
        controller.observe(a_round(some, ranks, base + slope * len(some), level_s * max(some.depths)))
    return controller


def brute_force(controller, nodes, depth, width):
    """The best number of nodes, from the probabilities of all paths there are."""
    rates = [sorted((rate / max(1.0, sum(level)) for rate in level), reverse=True) for level in controller.rates()]
    paths = [path for length in range(1, depth + 1) for path in itertools.product(range(width), repeat=length)]
    worth = {path: math.prod(rates[level][rank] for level, rank in enumerate(path)) for path in paths}
    likeliest = sorted(paths, key=lambda path: (-worth[path], len(path), path))
    best, most = 0, 1.0 / controller.predicted_s(0, 0)
    for count in range(1, min(nodes, len(paths)) + 1):
        taken = likeliest[:count]
        seconds = controller.predicted_s(count, max(map(len, taken)))
        goodput = (1.0 + sum(worth[path] for path in taken)) / seconds
        if goodput > most * (1 + 1e-12):
            best, most = count, goodput
    return best


@each_row("slope", [0.0, 0.001, 0.01, 0.05, 0.2, 1.0])
@each_row("hits", [(0.6, 0.2, 0.1), (0.9,), (0.2, 0.2, 0.2), ()], ids=str)
@each_row("level_s", [0.0, 0.05])
def test_the_size_is_the_one_that_brute_force_finds_for_a_straight_line(slope, hits, level_s):
    controller = taught(1.0, slope, hits, level_s=level_s)
    best = controller.best_size()
    assert best.nodes == brute_force(controller, 30, 3, 3)
    plan = controller.plan(CONTEXT)
    assert (plan.nodes, plan.depth, plan.width) == (best.nodes, best.depth, best.width)


def test_dearer_rows_make_smaller_trees_down_to_none():
    sizes = [taught(1.0, slope, (0.6, 0.2, 0.1)).best_size().nodes for slope in (0.001, 0.02, 0.1, 0.5, 3.0)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > 12
    assert sizes[-1] == 0
    assert len(set(sizes)) >= 4


def test_the_line_follows_a_step_change_of_what_passes_take():
    controller = CostModel(CostModelOptions(memory=16), Budget(30, 3, 3))
    taught(1.0, 0.1, (0.5,), given=controller)
    assert controller.predicted_s(0, 0) == pytest.approx(1.1, rel=1e-3)
    assert controller.predicted_s(10, 0) == pytest.approx(2.1, rel=1e-3)
    taught(2.0, 0.4, (0.5,), given=controller, rounds=120)
    assert controller.predicted_s(0, 0) == pytest.approx(2.4, rel=0.02)
    assert controller.predicted_s(10, 0) == pytest.approx(6.4, rel=0.02)


def test_one_disturbed_pass_hardly_changes_the_line():
    controller = taught(1.0, 0.1, (0.5,))
    controller.observe(a_round(full_tree(3, 1), [0], 500.0))
    assert controller.predicted_s(0, 0) < 1.3


def test_each_rank_is_counted_where_the_target_was_asked():
    controller = CostModel(CostModelOptions(memory=1024), Budget(30, 4, 2))
    for turn in range(400):
        controller.observe(a_round(full_tree(2, 2), [0, 1] if turn % 2 else [9], 1.0))
    first, second, _, unseen = controller.rates()
    assert first == pytest.approx([0.5, 0.0], abs=0.02)
    assert second == pytest.approx([0.0, 1.0], abs=0.05), "below the first rank, which is all that was reached"
    assert unseen == second, "an unseen depth is like the one before"


def test_it_measures_two_sizes_first_unless_costs_are_known():
    controller = CostModel(CostModelOptions(), Budget(8, 4, 2))
    sizes = []
    for _ in range(2):
        sizes.append(controller.plan(CONTEXT).nodes)
        tree = full_tree(1, 1) if sizes[-1] < 8 else full_tree(2, 2)
        controller.observe(a_round(tree, [0], 1.0))
    assert sizes == [4, 8]
    assert controller.plan(CONTEXT).why.endswith("nodes")
    known = CostModel(CostModelOptions(), Budget(8, 4, 2), Costs(((1, 1.0), (8, 30.0))))
    assert known.plan(CONTEXT).nodes == 0


def test_where_nothing_pays_a_trial_comes_now_and_then():
    controller = taught(1.0, 3.0, (0.3,), given=CostModel(CostModelOptions(probe=5), Budget(8, 2, 2)))
    planned = []
    for _ in range(14):
        planned.append(controller.plan(CONTEXT).nodes)
        tree = full_tree(1, 1) if planned[-1] else TokenTree(0, V).freeze()
        controller.observe(a_round(tree, [9], 4.0 + 3.0 * tree.drafted, planned=planned[-1]))
    assert planned == [0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0]


def test_with_a_draft_model_that_is_the_target_it_plans_to_the_limit():
    said = reply(scripted_target(), scripted_target(), drafter="draft_model", controller="cost_model", max_tokens=60,
                 nodes=6, depth=3, width=1)  # fmt: skip
    assert said.tokens == reply(scripted_target(), controller="off", max_tokens=60).tokens
    assert said.ledger.acceptance_rate == 1.0


def test_a_rounds_time_is_that_of_its_rows_its_levels_and_of_learning():
    """A pass takes 1 + 0.1 s for each row after the first, a level 0.3 s, learning 0.2 s; each node brings a row."""
    subject = CostModel(CostModelOptions(memory=1024), Budget(16, 8, 4), costs())
    for index in range(200):
        nodes = 1 + index % 4
        subject.observe(chain_round(nodes, 0, draft_s=0.3 * nodes, learn_s=0.2, extra_rows=nodes))
    assert subject.predicted_s(5, 3) == pytest.approx(1.0 + 0.1 * 2 * 5 + 3 * 0.3 + 0.2, rel=0.01)
    assert subject.predicted_s(0, 0) == pytest.approx(1.0, rel=0.01)
