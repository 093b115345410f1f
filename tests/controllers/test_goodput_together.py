"""The goodput controllers of texts that one pass reads: rows are counted over all of them."""

import dataclasses
import random

import pytest
from goodput_rounds import a_round, context, controller, costs

from specchat.core.budget import Budget
from specchat.core.costs import Costs
from specchat.core.round import JointPass


def accepted_of(depth, rate, noise):
    accepted = 0
    while accepted < depth and noise.random() < rate:
        accepted += 1
    return accepted


def run(texts, rate, given, rounds=600, fixed=None, costs_of=None, skipped=0.5, apart=False):
    """Guesses of a text's round, and tokens a second of all, over so many rounds without a first share of them.

    Passes take what `costs_of` says, by default the costs that are given to the controllers.
    """
    noise = random.Random(4)
    subjects = [controller(given, nodes=8, memory=64) for _ in range(texts)]
    for subject in subjects[1:] if not apart else []:
        subject.learn_with(subjects[0])
    guesses = tokens = 0
    seconds, first = 0.0, int(rounds * skipped)
    for index in range(rounds):
        plans = [s.plan(context(index)) if fixed is None else Budget(fixed, fixed, 1) for s in subjects]
        drafted = [min(plan.nodes, plan.depth) for plan in plans]
        took = (costs_of or given).verify_s(texts + sum(drafted))
        joint = JointPass(texts, texts + sum(drafted), took) if texts > 1 else None
        for subject, plan, depth in zip(subjects, plans, drafted, strict=True):
            accepted = accepted_of(depth, rate, noise)
            done = a_round(depth, accepted, verify_s=took * (1 + depth) / (texts + sum(drafted)), budget=plan)
            subject.observe(dataclasses.replace(done, timings=dataclasses.replace(done.timings, joint=joint)))
            if index >= first:
                tokens += 1 + accepted
        if index >= first:
            guesses += sum(drafted)
            seconds += took
    return guesses / texts / (rounds - first), tokens / seconds


def test_many_texts_together_leave_out_guesses_that_pay_alone():
    """A guess costs a sixth of a plain round alone, and beside seven texts more than half of a text's share."""
    given = costs(per_row=0.15)
    alone, _ = run(1, 0.5, given)
    together, speed = run(8, 0.5, given)
    assert alone >= 1
    assert together < 0.25
    assert speed >= 0.97 * run(8, 0.5, given, fixed=0)[1]


@pytest.mark.parametrize("texts", [1, 4])
@pytest.mark.parametrize(("rate", "per_row"), [(0.8, 0.02), (0.7, 0.1), (0.3, 0.3)])
def test_all_texts_get_as_many_tokens_a_second_as_with_the_best_length_for_all(texts, rate, per_row):
    given = costs(per_row=per_row)
    best = max(run(texts, rate, given, fixed=depth)[1] for depth in range(7))
    assert run(texts, rate, given)[1] >= 0.93 * best


@pytest.mark.parametrize("rate", [0.5, 0.85])
def test_trees_get_smaller_as_texts_come_and_no_text_more_makes_all_slower(rate):
    """Rows that no profile reaches cost more than its last ones: eight texts with trees of their own are there."""
    profile = Costs(((1, 1.0), (2, 1.1), (4, 1.25), (8, 1.6), (16, 2.4), (32, 4.2)))
    given = Costs((*profile.verify, (64, 9.0), (128, 19.0)))
    found = [run(texts, rate, profile, costs_of=given) for texts in (1, 2, 4, 8)]
    guesses, speeds = ([one[part] for one in found] for part in (0, 1))
    assert guesses == sorted(guesses, reverse=True)
    assert guesses[-1] < guesses[0] / 2
    assert speeds == sorted(speeds)


def test_a_text_that_goes_on_alone_pays_its_own_rows_again():
    subject = controller(costs(per_row=0.1))
    done = a_round(1, 1)
    joined = dataclasses.replace(done.timings, joint=JointPass(4, 8, costs(per_row=0.1).verify_s(8)))
    subject.observe(dataclasses.replace(done, timings=joined))
    assert subject.costs.one_s == pytest.approx(costs(per_row=0.1).verify_s(4) / 4)
    assert subject.costs.verify_s(2) - subject.costs.one_s == pytest.approx(0.1)
    assert subject.costs.charged_s(dataclasses.replace(done, timings=joined)) == pytest.approx(
        subject.costs.verify_s(2)
    )
    subject.observe(done)
    assert subject.costs.one_s == pytest.approx(1.0)


TABLE = Costs(((1, 1.0), (2, 1.1), (4, 1.25), (8, 1.6), (16, 2.4), (32, 4.2), (64, 9.0), (128, 19.0)))


@pytest.mark.parametrize("rate", [0.5, 0.85])
@pytest.mark.parametrize("texts", [2, 8])
@pytest.mark.parametrize("given", [TABLE, costs(per_row=0.15)], ids=["steeper", "even"])
def test_the_rows_of_all_texts_are_the_closed_forms_best(texts, rate, given):
    """By a table of costs: depth k for all is worth texts · E(k) tokens, and takes a pass over texts · (1 + k) rows."""

    def goodput(depth):
        return texts * (1 - rate ** (depth + 1)) / (1 - rate) / given.verify_s(texts * (1 + depth))

    best = max(range(9), key=goodput)
    guesses, _ = run(texts, rate, given, rounds=400)
    assert abs(guesses - best) <= 1
    assert goodput(round(guesses)) >= 0.96 * goodput(best)


def test_texts_together_pay_for_trials_once():
    """Where guesses hardly stand, eight texts that learn together lose less than eight that learn alone."""
    given = costs(per_row=0.15)
    plain = run(8, 0.05, given, rounds=60, fixed=0, skipped=0)[1]
    lost = {apart: 1 - run(8, 0.05, given, rounds=60, skipped=0, apart=apart)[1] / plain for apart in (True, False)}
    assert lost[False] < 0.6 * lost[True]
