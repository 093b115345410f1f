"""What verifications take, learnt from rounds: the machine's speed, and what rows take relative to each other."""

from dataclasses import replace

import pytest
from goodput_rounds import a_round, costs

from specchat.controllers.learnt_costs import LearntCosts
from specchat.core.round import JointPass


def test_a_plain_round_among_wider_ones_tells_what_one_row_takes():
    """The profile says that three rows take 1.2 times as long as one; in truth they take 1.5 times as long."""
    subject = LearntCosts(costs(per_row=0.1))
    for index in range(120):
        subject.add(*((1, 1.0) if index % 12 == 11 else (3, 1.5)))
    assert subject.one_s == pytest.approx(1.0, rel=0.05)
    assert subject.verify_s(3) == pytest.approx(1.5, rel=0.05)


def test_a_machine_that_slows_down_slows_all_rows_alike():
    subject = LearntCosts(costs(per_row=0.1))
    for _ in range(60):
        subject.add(3, 2.4)
    assert subject.one_s == pytest.approx(2.0, rel=0.05)


def test_the_first_rounds_correct_a_profile_of_a_longer_context_at_once():
    subject = LearntCosts(costs(per_row=0.1))
    for _ in range(4):
        subject.add(1, 0.7)
    assert subject.one_s == pytest.approx(0.7, rel=0.12)


@pytest.mark.parametrize("per_row", [0.0, 0.01, 0.3])
def test_without_a_profile_a_dozen_rounds_tell_what_a_row_adds(per_row):
    subject = LearntCosts(None)
    for index in range(12):
        rows = (4, 2, 6, 1)[index % 4]
        subject.add(rows, 0.02 * (1 + per_row * (rows - 1)))
    assert subject.one_s == pytest.approx(0.02, rel=0.1)
    assert (subject.verify_s(6) - subject.one_s) / 0.02 == pytest.approx(5 * per_row, abs=0.1)
    assert next(subject.rows_s(8)) == pytest.approx(0.02 * per_row, abs=0.0005)


def test_without_a_profile_one_disturbed_round_is_soon_forgotten():
    subject = LearntCosts(None)
    for index in range(24):
        subject.add((1, 4)[index % 2], 3.0 if index == 3 else 1.0)
    assert subject.verify_s(4) == pytest.approx(1.0, rel=0.1)


def test_a_pass_over_several_texts_is_timed_once_though_each_of_them_tells_of_it():
    """One that took twice as long corrects the profile as a pass over one text does, and what a text pays follows."""
    together, once = (LearntCosts(costs(per_row=0.1)) for _ in range(2))
    for took_s in (1.7, 3.4, 3.4):
        joint = JointPass(4, 8, took_s)
        for _ in range(4):
            done = a_round(1, 1)
            together.observe(replace(done, timings=replace(done.timings, joint=joint)))
        once.add(8, took_s)
        alone_s = once.verify_s(4) / 4
        assert together.one_s == pytest.approx(alone_s)
        assert together.verify_s(3) == pytest.approx(alone_s + once.verify_s(9) - once.verify_s(7))
