"""The goodput controller where guesses bring extra rows, learning takes time, or a network's passes must pay."""

import math

import pytest
import torch
from goodput_rounds import a_round, context, controller, costs, taught
from rows import each_row

from specchat.core.costs import Costs


@pytest.mark.parametrize("riders_per_node", [0, 1, 3])
def test_riders_are_rows_like_any_other(riders_per_node):
    """With r extra rows at every node a round of n guesses reads (1 + n)(1 + r) rows."""
    given, rate = costs(per_row=0.1), 0.7
    subject, generator = controller(given, memory=1024), torch.Generator().manual_seed(1)
    for _ in range(3000):
        accepted = 0
        while accepted < 8 and float(torch.rand((), generator=generator)) < rate:
            accepted += 1
        subject.observe(a_round(8, accepted, given=given, extra_rows=9 * riders_per_node))

    def goodput(k):
        rows = 1 + k if k == 0 else (1 + k) * (1 + riders_per_node)
        return (1 - rate ** (k + 1)) / (1 - rate) / (1 + 0.1 * (rows - 1))

    depth, _ = subject.best_depth()
    assert goodput(depth) >= 0.97 * max(map(goodput, range(9)))
    assert depth < 8 or riders_per_node == 0


def test_a_guess_that_brings_riders_must_be_likelier():
    def prices(extra_rows):
        subject = controller()
        for _ in range(200):
            subject.observe(a_round(3, 2, logprob=math.log(0.7), extra_rows=extra_rows))
        return subject.plan(context(50)).prices

    alone, ridden = prices(0), prices(8)
    assert all(more > 1.5 * less for less, more in zip(alone, ridden, strict=True))
    assert list(ridden) == sorted(ridden)


@pytest.mark.parametrize("each", [1, 2, 3])
def test_a_guess_is_priced_with_all_the_rows_that_come_with_it(each):
    """Rows after the eighth take 0.05 s each. All guesses stand: one in four rounds, two in the next four.

    Where drafting surely pays one round of four is learnt from.
    """
    given = Costs(((1, 1.0), (8, 1.07), (32, 2.27)))
    subject = controller(given, memory=1024)
    for index in range(400):
        drafted = 1 + index // 4 % 2
        rows = each * (1 + drafted)
        subject.observe(a_round(drafted, drafted, given=given, extra_rows=rows - 1 - drafted, logprob=0.0))
    prices = subject.plan(context(50)).prices
    tokens_a_second = 2.5 / given.verify_s(each * 3)  # on average, by the time of the larger trees
    node_s = each * 0.05 + 0.004  # the host's share: 0.4 % of a plain pass
    first = math.ceil(9 / each)
    assert len(prices) > first
    assert prices[first:] == pytest.approx([tokens_a_second * node_s] * len(prices[first:]), rel=0.03)


def test_where_a_pass_waits_for_the_disk_unlikely_guesses_pay_for_their_rows():
    def prices(node_s):
        given = Costs(((1, 0.5), (64, 0.51), (512, 2.0)), node_s=node_s)
        subject = taught(controller(given), 0.8, given=given)
        return subject.plan(context(50)).prices

    assert max(prices(None)[:8]) > 4 * max(prices(0.0001)[:8]) > 0


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
        subject.observe(a_round(8, 0, extra_rows=9))
    plans, nothing_yet = [], True
    for index in range(1, 200):
        plan = subject.plan(context(index))
        plans.append(plan.nodes)
        if plan.nodes and nothing_yet:  # its extra rows ride now; what they say can be guessed in the next round
            subject.observe(a_round(0, 0, extra_rows=1, budget=plan))
            nothing_yet = False
        elif plan.nodes:
            subject.observe(a_round(1, 1, extra_rows=2, budget=plan))
            break
        else:
            subject.observe(a_round(0, 0))
    assert plans[-2:] == [1, 1]


def test_riders_that_lead_to_no_guess_do_not_keep_a_trial_going():
    subject = controller()
    for _ in range(30):
        subject.observe(a_round(8, 0, extra_rows=9))
    tried = 0
    for index in range(1, 400):
        plan = subject.plan(context(index))
        tried += plan.nodes > 0
        subject.observe(a_round(0, 0, extra_rows=1 if plan.nodes else 0, budget=plan))
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
        asked = int(ready and plan.passes and plan.nodes > 0)
        most = asked * min(plan.depth, plan.nodes)
        steps = sum(rate**level >= plan.pass_price for level in range(most))
        levels = sum(rate ** (level + 1) >= plan.floor for level in range(steps))
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


@each_row("rate", [0.05, 0.3, 0.5])
@each_row("states_s", [0.0, 0.03, 0.15])
@each_row(("begin_s", "level_s"), [(0.05, 0.05), (0.3, 0.1), (0.1, 1.0)])
def test_a_trained_network_that_does_not_pay_costs_next_to_nothing(rate, states_s, begin_s, level_s):
    assert simulated(rate, begin_s, level_s, states_s, judging_s=0.05) >= 0.97


def test_a_trained_network_that_pays_is_used():
    assert simulated(0.75, begin_s=0.08, level_s=0.05, states_s=0.03, judging_s=0.05) >= 1.5


def test_what_beginning_to_draft_takes_is_told_from_what_a_level_adds():
    subject = controller()
    for index in range(60):
        levels = 1 + index % 3
        subject.observe(a_round(levels, 1, draft_s=0.5 + 0.1 * levels, passes=levels))
    assert subject.statistics.draft.begin_s == pytest.approx(0.5)
    assert subject.statistics.draft.step_s == pytest.approx(0.1)
