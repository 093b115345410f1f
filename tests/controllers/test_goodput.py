"""The goodput controller: the closed form, off when nothing pays, on again when something does."""

import dataclasses
import itertools
import math
import re

import pytest
import torch

from specchat.controllers.goodput import Goodput
from specchat.controllers.options import GoodputOptions
from specchat.controllers.round_statistics import expected_accepted, stood_by_depth
from specchat.core.budget import Budget
from specchat.core.context import Context
from specchat.core.costs import Costs, interpolate
from specchat.core.reading import Reading
from specchat.core.round import Round, Timings
from specchat.core.tree import ROOT, Guess, TokenTree
from specchat.core.verdict import Verdict, explain

V = 50
ROWS = (1, 2, 4, 8, 16, 32)


def costs(base=1.0, per_row=0.1):
    return Costs(tuple((rows, base + per_row * (rows - 1)) for rows in ROWS))


def controller(given=None, nodes=16, depth=8, memory=32):
    return Goodput(GoodputOptions(memory=memory), Budget(nodes, depth, 1), given or costs())


def context(round_index=0):
    made = Context([1, 2, 3], 2, V)
    made.round = round_index
    return made


def chain(length, logprob=None):
    tree, node = TokenTree(0, V), ROOT
    for token in range(length):
        node = tree.add(node, Guess(token, logprob=logprob))
    return tree.freeze()


def a_round(
    drafted,
    accepted,
    verify_s=None,
    draft_s=0.0,
    passes=0,
    logprob=None,
    given=None,
    riders=0,
    learn_s=0.0,
    budget=None,
):
    tree = chain(drafted, logprob)
    path = tuple(range(1, accepted + 1))
    reading = Reading(tuple(range(len(tree))), torch.zeros(len(tree), V), frozenset(range(len(tree))))
    seconds = (given or costs()).verify_s(len(tree) + riders) if verify_s is None else verify_s
    verdict = Verdict(path, 9, explain(tree, path))
    timings = Timings(draft_s, seconds, learn_s, learn_s)
    emitted = tuple(verdict.emitted(tree))
    budget = budget or Budget(drafted)
    return Round(0, 3, [1, 2, 3], budget, tree, reading, verdict, emitted, passes, timings, riders)


def judged(tree, path, bonus=9):
    """A round over this tree in which this path stood."""
    reading = Reading(tuple(range(len(tree))), torch.zeros(len(tree), V), frozenset(range(len(tree))))
    verdict = Verdict(path, bonus, explain(tree, path))
    timings = Timings(0.0, costs().verify_s(len(tree)), 0.0)
    emitted = tuple(verdict.emitted(tree))
    return Round(0, 3, [1, 2, 3], Budget(8), tree, reading, verdict, emitted, 0, timings)


def taught(subject, rate, rounds=400, seed=0, **about):
    """Rounds in which every draft token stands with the same probability, as deep as the controller asks."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(rounds):
        depth = 8
        accepted = 0
        while accepted < depth and float(torch.rand((), generator=generator)) < rate:
            accepted += 1
        subject.observe(a_round(depth, accepted, **about))
    return subject


@pytest.mark.parametrize("rate", [0.3, 0.6, 0.8, 0.9])
@pytest.mark.parametrize("per_row", [0.02, 0.15, 0.4])
def test_the_depth_is_the_closed_forms_best(rate, per_row):
    given = costs(per_row=per_row)
    subject = taught(controller(given, memory=1024), rate, rounds=3000, given=given)

    def goodput(k):
        return (1 - rate ** (k + 1)) / (1 - rate) / (1 + per_row * k)

    depth, predicted = subject.best_depth()
    best = max(range(9), key=goodput)
    assert goodput(depth) >= 0.97 * goodput(best), "a depth as good as the best one, up to sampling noise"
    assert math.isclose(predicted, goodput(depth), rel_tol=0.1)


def test_it_turns_itself_off_when_nothing_is_accepted():
    subject = controller()
    plans = [plan_and_fail(subject, index) for index in range(600)]
    assert sum(plan.nodes > 0 for plan in plans[100:]) <= 8
    assert any(plan.nodes > 0 for plan in plans[100:]), "now and then it tries again"


def plan_and_fail(subject, index):
    plan = subject.plan(context(index))
    subject.observe(a_round(min(plan.nodes, plan.depth), 0))
    return plan


def test_it_turns_itself_off_when_rows_are_dear():
    given = costs(per_row=2.0)
    subject = taught(controller(given), 0.7, given=given)
    assert subject.plan(context(50)).nodes == 0


def test_it_comes_back_when_drafts_become_good():
    subject = controller()
    for index in range(200):
        plan_and_fail(subject, index)
    for index in range(2000):
        plan = subject.plan(context(index))
        drafted = min(plan.nodes, plan.depth)
        subject.observe(a_round(drafted, drafted))
    assert subject.plan(context(9)).depth > 1


def test_a_draft_model_that_does_not_pay_is_tried_only_when_a_reply_begins():
    subject = taught(controller(), 0.1, draft_s=8.0, passes=8)
    assert [subject.plan(context(index)).nodes for index in range(1, 300)] == [0] * 299
    assert subject.plan(context(0)).nodes == 1


def test_a_network_whose_passes_are_cheap_is_tried_within_a_reply_too():
    subject = taught(controller(costs(per_row=0.5)), 0.1, draft_s=0.08 * 8, passes=8)
    tried = []
    for index in range(1, 400):
        plan = subject.plan(context(index))
        tried += [index] if plan.nodes and plan.passes else []
        subject.observe(dataclasses.replace(a_round(plan.nodes, 0), budget=plan))
    assert 2 <= len(tried) <= 6, "each trial that fails makes the next one later"
    assert all(later - earlier >= earlier - 1 for earlier, later in itertools.pairwise(tried))


def test_the_time_of_a_level_is_shared_by_its_nodes():
    def price(nodes_of_a_level):
        subject = controller()
        for _ in range(40):
            tree = TokenTree(0, V)
            for token in range(nodes_of_a_level):
                tree.add(ROOT, Guess(token))
            round = judged(tree.freeze(), (1,))
            subject.observe(dataclasses.replace(round, draft_passes=1, timings=Timings(0.1, 1.2, 0.0)))
        return subject.plan(context(1)).prices[0]

    assert price(4) < price(1)


@pytest.mark.parametrize(("stood", "deeper"), [(2, True), (0, False)])
def test_a_depth_where_nobody_has_been_is_taken_to_be_like_the_one_before(stood, deeper):
    subject = controller(costs(per_row=0.4))
    for _ in range(100):
        subject.observe(a_round(2, stood, given=costs(per_row=0.4)))
    assert (subject.best_depth()[0] > 2) == deeper


def test_a_depth_below_the_end_of_the_accepted_branch_is_not_counted_as_failed():
    """The branch that stood ends at depth 1, and another, rejected one goes on to depth 3."""
    tree = TokenTree(0, V)
    stood = tree.add(ROOT, Guess(5))
    tree.add(tree.add(tree.add(ROOT, Guess(6)), Guess(7)), Guess(8))
    assert stood_by_depth(judged(tree, (stood,))) == [True]
    assert stood_by_depth(judged(tree, ())) == [False]
    assert stood_by_depth(judged(chain(3), (1, 2))) == [True, True, False]
    assert stood_by_depth(judged(chain(3), (1,), bonus=None)) == [True], "the reply ended: nobody asked for more"
    subject, before = controller(), controller().best_depth()
    for _ in range(50):
        subject.observe(judged(tree, (stood,)))
    assert subject.best_depth()[0] >= before[0]
    for _ in range(50):
        subject.observe(judged(chain(3), (1,)))
    assert subject.best_depth()[0] < before[0], "where there was a guess and it fell, it counts"


def test_passes_that_lead_to_no_guess_count_as_misses():
    subject = controller(nodes=4, depth=4)
    for index in range(1, 60):
        plan = subject.plan(context(index))
        subject.observe(dataclasses.replace(a_round(0, 0, draft_s=0.5, passes=1), budget=plan))
    assert not subject.plan(context(60)).passes


def test_looking_up_goes_on_where_a_draft_model_does_not_pay():
    subject = taught(controller(), 0.1, draft_s=8.0, passes=8)
    drafted = 0
    for index in range(1, 200):
        plan = subject.plan(context(index))
        assert not plan.passes, "the model stays silent until the next reply"
        found = min(plan.nodes, plan.depth)
        drafted += found
        subject.observe(dataclasses.replace(a_round(found, found, logprob=math.log(0.95)), budget=plan))
    assert drafted > 300
    assert subject.plan(context(0)).passes


def test_the_users_budget_is_a_ceiling():
    subject = taught(controller(nodes=3, depth=2), 0.95)
    plan = subject.plan(context())
    assert (plan.nodes, plan.depth) <= (3, 2)
    assert controller(nodes=0).plan(context()).nodes == 0


def test_dear_rows_ask_for_likelier_guesses():
    cheap = taught(controller(costs(per_row=0.01)), 0.8, given=costs(per_row=0.01), logprob=math.log(0.8))
    dear = taught(controller(costs(per_row=0.3)), 0.8, given=costs(per_row=0.3), logprob=math.log(0.8))
    assert cheap.plan(context()).floor < dear.plan(context()).floor


def test_broken_promises_raise_the_floor():
    given = costs(per_row=0.1)
    honest = taught(controller(given), 0.6, given=given, logprob=math.log(0.6))
    boasting = taught(controller(given), 0.6, given=given, logprob=math.log(0.95))
    assert boasting.plan(context()).floor > honest.plan(context()).floor


def test_without_a_profile_it_learns_from_what_rounds_took():
    subject = Goodput(GoodputOptions(), Budget(16, 8, 1), None)
    taught(subject, 0.9, verify_s=1.0)
    for _ in range(50):
        subject.observe(a_round(0, 0, verify_s=1.0))
    assert subject.best_depth()[0] == 8


def test_a_shorter_context_than_the_profiles_makes_no_row_dear():
    given = costs(per_row=0.05)
    subject = controller(given)
    before = subject.plan(context()).prices[0]
    for _ in range(200):
        subject.observe(a_round(0, 0, verify_s=0.7))
    assert subject.plan(context()).prices[0] == pytest.approx(before, rel=0.1)
    dearer = Goodput(GoodputOptions(), Budget(16, 8, 1), given)
    for _ in range(200):
        dearer.observe(a_round(3, 0, verify_s=1.6, logprob=math.log(0.5)))
        dearer.observe(a_round(0, 0, verify_s=1.0))
    assert dearer.best_depth()[1] == pytest.approx(1.0, rel=0.1), "what rows really cost is learnt all the same"


def test_prices_never_fall_and_end_where_the_curve_bends_up():
    given = Costs(((1, 1.0), (2, 1.01), (4, 1.03), (8, 1.8), (16, 4.0)))
    prices = taught(controller(given), 0.0, given=given, logprob=math.log(0.5)).plan(context()).prices
    plain = controller(given).plan(context()).prices
    assert list(plain) == sorted(plain)
    assert plain[2] < 0.2 * plain[3], "the fourth node is the first to need the dear rows"
    assert not prices or prices[0] > plain[0]


def test_a_first_step_that_is_the_dearest_is_not_taken_for_a_cheap_slope():
    given = Costs(((1, 1.0), (2, 1.6), (3, 2.0), (4, 1.4), (8, 1.3), (32, 2.1)))
    subject = controller(given)
    for _ in range(50):
        subject.observe(a_round(0, 0, given=given))
    assert subject.plan(context()).floor > 0.4, "two rows for what thirty would cost on average"
    for _ in range(50):
        subject.observe(a_round(8, 8, given=given, logprob=math.log(0.99)))
    assert subject.plan(context()).floor < 0.5 * 8, "long quotations still pay"


def test_a_drafter_that_knows_when_it_is_right_is_not_judged_by_how_often_it_is():
    """Most of its guesses are poor and it says so; now and then it is sure, and prices let just those pass."""
    given = costs(per_row=0.15)
    subject = controller(given)
    for index in range(300):
        drafted, chance = (8, 0.99) if index % 10 == 0 else (1, 0.05)
        subject.observe(a_round(drafted, drafted if drafted > 1 else 0, logprob=math.log(chance), given=given))
    assert subject.best_depth()[0] == 0, "by the mean of all guesses nothing would be drafted"
    plan = subject.plan(context(300))
    assert (plan.nodes, plan.depth) == (16, 8)
    assert 0.05 < plan.floor < 0.9


def test_promises_are_the_sum_of_the_paths_chances():
    assert expected_accepted(chain(3, math.log(0.5))) == pytest.approx(0.5 + 0.25 + 0.125)
    assert expected_accepted(chain(3)) is None


def test_costs_are_interpolated_and_extended():
    points = ((1, 1.0), (4, 4.0), (8, 6.0))
    assert interpolate(points, 1) == 1.0
    assert interpolate(points, 2) == pytest.approx(2.0)
    assert interpolate(points, 6) == pytest.approx(5.0)
    assert interpolate(points, 12) == pytest.approx(8.0)
    assert interpolate(points, 0) == 1.0


def test_it_says_why_it_chose_so():
    given = costs(per_row=0.1)
    drafting = taught(controller(given), 0.9, given=given, logprob=math.log(0.9)).plan(context())
    assert drafting.why == f"a guess pays from {100 * drafting.floor:.0f} %"
    failing = controller()
    plans = [plan_and_fail(failing, index) for index in range(600)]
    assert re.fullmatch(r"guesses came true \d % of the time, trial in \d+ rounds?", plans[-1].why)
    modelled = taught(controller(), 0.1, draft_s=8.0, passes=8)
    assert modelled.plan(context(1)).why.endswith("trial with the next reply")
    assert controller(nodes=0).plan(context()).why == "no nodes: fixed by you"


# ----------------------------------------------------------------------------------------- riders and learning


@pytest.mark.parametrize("riders_per_node", [0, 1, 3])
def test_riders_are_rows_like_any_other(riders_per_node):
    """With r riders at every node a round of n guesses reads (1 + n)(1 + r) rows."""
    given, rate = costs(per_row=0.1), 0.7
    subject, generator = controller(given, memory=1024), torch.Generator().manual_seed(1)
    for _ in range(3000):
        accepted = 0
        while accepted < 8 and float(torch.rand((), generator=generator)) < rate:
            accepted += 1
        subject.observe(a_round(8, accepted, given=given, riders=9 * riders_per_node))

    def goodput(k):
        rows = 1 + k if k == 0 else (1 + k) * (1 + riders_per_node)
        return (1 - rate ** (k + 1)) / (1 - rate) / (1 + 0.1 * (rows - 1))

    depth, _ = subject.best_depth()
    assert goodput(depth) >= 0.97 * max(map(goodput, range(9)))
    assert depth < 8 or riders_per_node == 0


def test_a_guess_that_brings_riders_must_be_likelier():
    def prices(riders):
        subject = controller()
        for _ in range(200):
            subject.observe(a_round(3, 2, logprob=math.log(0.7), riders=riders))
        return subject.plan(context(50)).prices

    alone, ridden = prices(0), prices(8)
    assert all(more > 1.5 * less for less, more in zip(alone, ridden, strict=True))
    assert list(ridden) == sorted(ridden)


@pytest.mark.parametrize("logprob", [None, math.log(0.8)])
def test_learning_that_takes_longer_than_guesses_save_is_not_paid_for(logprob):
    def plan(learn_s):
        subject = taught(controller(), 0.8, logprob=logprob, learn_s=learn_s)
        return subject.plan(context(50)).nodes

    assert plan(0.0) > 0
    assert plan(0.5) > 0
    assert plan(20.0) == 0


def test_learning_that_plain_rounds_pay_too_does_not_count_against_guesses():
    subject = controller()
    for _ in range(200):
        subject.observe(a_round(0, 0, learn_s=1.0))
        subject.observe(a_round(8, 6, learn_s=1.0))
    assert subject.plan(context(50)).nodes > 0


def test_a_trial_of_a_drafter_with_riders_takes_two_rounds():
    subject = controller()
    for _ in range(30):
        subject.observe(a_round(8, 0, riders=9))
    plans, nothing_yet = [], True
    for index in range(1, 200):
        plan = subject.plan(context(index))
        plans.append(plan.nodes)
        if plan.nodes and nothing_yet:  # its riders ride now; what they say can be guessed in the next round
            subject.observe(a_round(0, 0, riders=1, budget=plan))
            nothing_yet = False
        elif plan.nodes:
            subject.observe(a_round(1, 1, riders=2, budget=plan))
            break
        else:
            subject.observe(a_round(0, 0))
    assert plans[-2:] == [1, 1]


def test_riders_that_lead_to_no_guess_do_not_keep_a_trial_going():
    subject = controller()
    for _ in range(30):
        subject.observe(a_round(8, 0, riders=9))
    tried = 0
    for index in range(1, 400):
        plan = subject.plan(context(index))
        tried += plan.nodes > 0
        subject.observe(a_round(0, 0, riders=1 if plan.nodes else 0, budget=plan))
    assert tried <= 16


def simulated(rate, begin_s, level_s, states_s, judging_s, rounds=1500):
    """Tokens a second of a trained network under goodput, as a multiple of plain decoding's, by a scripted clock.

    Args:
        begin_s, level_s: what drafting takes once and for each level; a plain round takes 1.
        states_s: what taking the target's states in takes, in every round that asks for them.
        judging_s: what a round with guesses takes besides.
    """
    generator = torch.Generator().manual_seed(0)
    subject, seconds, tokens, ready = controller(nodes=8, depth=4), 0.0, 0, True
    for index in range(rounds):
        plan = subject.plan(context(index % 60))
        levels = 0
        while ready and plan.passes and levels < min(plan.depth, plan.nodes) and rate ** (levels + 1) >= plan.floor:
            levels += 1
        asked = int(ready and plan.passes and plan.nodes > 0)
        steps = max(levels, asked)
        accepted = 0
        while accepted < levels and float(torch.rand((), generator=generator)) < rate:
            accepted += 1
        took = {"draft_s": asked * begin_s + steps * level_s, "learn_s": plan.passes * states_s + asked * judging_s}
        done = a_round(levels, accepted, passes=steps, logprob=math.log(rate), budget=plan, **took)
        subject.observe(done)
        ready = plan.passes
        seconds += sum(took.values()) + done.timings.verify_s
        tokens += len(done.emitted)
    return tokens / seconds


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.5])
@pytest.mark.parametrize("states_s", [0.0, 0.03, 0.15])
@pytest.mark.parametrize(("begin_s", "level_s"), [(0.05, 0.05), (0.3, 0.1), (0.1, 1.0)])
def test_a_trained_network_that_does_not_pay_costs_next_to_nothing(rate, states_s, begin_s, level_s):
    assert simulated(rate, begin_s, level_s, states_s, judging_s=0.05) >= 0.97


def test_a_trained_network_that_pays_is_used():
    assert simulated(0.75, begin_s=0.08, level_s=0.05, states_s=0.03, judging_s=0.05) >= 1.5


def test_what_beginning_to_draft_takes_is_told_from_what_a_level_adds():
    subject = controller()
    for index in range(60):
        levels = 1 + index % 3
        subject.observe(a_round(levels, 1, draft_s=0.5 + 0.1 * levels, passes=levels))
    assert subject._all.draft.begin_s == pytest.approx(0.5)
    assert subject._all.draft.level_s == pytest.approx(0.1)
