"""The goodput controller: the closed form, off when nothing pays, on again when something does."""

import dataclasses
import itertools
import math
import re

import pytest
from goodput_rounds import V, a_round, chain, context, controller, costs, judged, plan_and_fail, taught

from specchat.controllers.goodput import Goodput
from specchat.controllers.options import GoodputOptions
from specchat.controllers.round_statistics import expected_accepted, stood_by_depth
from specchat.core.budget import Budget
from specchat.core.costs import Costs, interpolate
from specchat.core.tree import ROOT, Guess, TokenTree


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


def test_the_depths_that_online_speculative_decoding_publishes_are_found():
    """k* = 7, 6, 4, 3 where 0.6 of all guesses stand and a guess costs 0.01, 0.02, 0.05, 0.1 of a pass.

    There (1 − a^(k + 1)) / (1 − a) / (1 + c k) is largest, which counts the bonus token. Without it k is one more.
    """
    for cost, published in ((0.01, 7), (0.02, 6), (0.05, 4), (0.1, 3)):
        subject = controller(costs(per_row=cost), depth=12)
        for accepted in subject.statistics.accepted:
            accepted.add(0.6)
        goodput = {k: (1 - 0.6 ** (k + 1)) / 0.4 / (1 + cost * k) for k in range(13)}
        depth, predicted = subject.best_depth()
        assert depth == published == max(goodput, key=lambda k: goodput[k])
        assert max(goodput, key=lambda k: goodput[k] - 1 / (1 + cost * k)) == published + 1, "accepted guesses alone"
        assert math.isclose(predicted, goodput[depth], rel_tol=1e-12)


def test_it_turns_itself_off_when_nothing_is_accepted():
    subject = controller()
    plans = [plan_and_fail(subject, index) for index in range(600)]
    assert sum(plan.nodes > 0 for plan in plans[100:]) <= 8
    assert any(plan.nodes > 0 for plan in plans[100:]), "now and then it tries again"


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


@pytest.mark.parametrize(("stood", "deeper"), [(2, True), (0, False)])
def test_a_depth_never_reached_is_taken_to_be_like_the_one_before(stood, deeper):
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
    assert stood_by_depth(judged(chain(3), (1,), bonus=None)) == [True], "the reply ended: no more was asked for"
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


def test_where_each_row_is_dearer_than_the_one_before_the_first_guess_pays_for_its_own_alone():
    given = Costs(((1, 1.0), (2, 1.05), (3, 1.35), (4, 1.65), (8, 3.0)))
    subject = controller(given)
    for _ in range(50):
        subject.observe(a_round(3, 3, given=given, logprob=math.log(0.9)))
    first, second = subject.plan(context(50)).prices[:2]
    assert first < 0.25 * second


def test_a_drafter_that_knows_when_it_is_right_is_not_judged_by_how_often_it_is():
    """Most of its guesses are poor and it says so; now and then it is sure, and prices let just those pass."""
    given = costs(per_row=0.15)
    subject = controller(given)
    for index in range(330):
        drafted, chance = (8, 0.99) if index % 11 == 0 else (1, 0.05)  # of four rounds one is learnt from
        subject.observe(a_round(drafted, drafted if drafted > 1 else 0, logprob=math.log(chance), given=given))
    assert subject.best_depth()[0] == 0, "by the mean of all guesses nothing would be drafted"
    plan = subject.plan(context(330))
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


def test_the_rounds_until_a_trial_are_counted_down_until_it_comes():
    subject = controller()
    plans = [plan_and_fail(subject, index) for index in range(600)]
    trials = [index for index, plan in enumerate(plans) if index > 100 and plan.nodes]
    told = [int(plan.why.split()[-2]) for plan in plans[trials[0] + 1 : trials[1]]]
    assert len(told) > 16
    assert told == list(range(len(told), 0, -1))


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
