"""Bootstrap and chi-square against cases whose answers are known."""

from __future__ import annotations

import random

import pytest

from specchat.bench.check_law import fit, tail
from specchat.bench.measured_reply import ratio_of_totals


def test_equal_ratios_have_no_spread():
    interval = ratio_of_totals([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert (interval.value, interval.low, interval.high) == (2.0, 2.0, 2.0)


def test_the_ratio_is_of_totals_not_of_means():
    assert ratio_of_totals([1.0, 90.0], [1.0, 30.0]).value == pytest.approx(91 / 31)


def test_one_question_has_no_range():
    interval = ratio_of_totals([3.0], [2.0])
    assert (interval.value, interval.low, interval.high) == (1.5, None, None)


def test_the_range_is_the_same_every_time():
    above, below = [1.0, 5.0, 3.0, 2.0], [1.0, 2.0, 3.0, 1.0]
    assert ratio_of_totals(above, below) == ratio_of_totals(above, below)


def test_the_range_covers_the_true_ratio_about_as_often_as_it_says():
    chance, covered, trials = random.Random(1), 0, 60
    for trial in range(trials):
        below = [chance.uniform(1, 3) for _ in range(40)]
        above = [2.0 * b * chance.uniform(0.7, 1.3) for b in below]
        interval = ratio_of_totals(above, below, seed=trial)
        assert interval.low is not None
        assert interval.high is not None
        covered += interval.low <= 2.0 <= interval.high
    assert 0.85 * trials <= covered <= trials


@pytest.mark.parametrize(
    ("statistic", "degrees", "p"),
    [(3.841459, 1, 0.05), (5.991465, 2, 0.05), (18.30704, 10, 0.05), (6.634897, 1, 0.01), (0.0, 3, 1.0)],
)
def test_tails_are_those_of_the_tables(statistic, degrees, p):
    assert tail(statistic, degrees) == pytest.approx(p, abs=1e-6)


def test_a_fair_die_fits_and_a_loaded_one_does_not():
    chance = random.Random(3)
    law = dict.fromkeys(range(6), 1 / 6)
    fair = [chance.randrange(6) for _ in range(600)]
    loaded = [0 if chance.random() < 0.15 else chance.randrange(6) for _ in range(600)]
    assert fit(fair, law).p_value > 0.01
    assert fit(loaded, law).p_value < 1e-6


def test_the_statistic_is_pearsons():
    found = fit(["a"] * 30 + ["b"] * 70, {"a": 0.5, "b": 0.5})
    assert found.statistic == pytest.approx(16.0)
    assert found.degrees == 1


def test_rare_outcomes_are_counted_together():
    found = fit(["a"] * 96 + ["x", "y", "z", "w"], {"a": 0.94, "x": 0.02, "y": 0.02, "z": 0.01})
    assert found.degrees == 1  # a, and everything else


def test_a_law_without_choice_cannot_be_tested():
    found = fit(["a"] * 50, {"a": 1.0})
    assert (found.degrees, found.p_value) == (0, 1.0)
