"""The line through recent measurements finds slope and intercept again after they changed."""

from __future__ import annotations

import pytest

from specchat.indexes.running_estimates import RecentCostFit, RecentLinearFit


def fed(points, line=None):
    line = line or RecentLinearFit()
    for x, y in points:
        line.add(x, y)
    return line


def test_points_on_a_line_give_that_line():
    line = fed([(x, 3.0 + 0.5 * x) for x in (1, 5, 9, 2)])
    assert line.known
    assert line.slope == pytest.approx(0.5)
    assert line.at(20) == pytest.approx(13.0)


def test_it_recovers_after_a_step_change():
    line = fed([(x % 9 + 1, 3.0 + 0.5 * (x % 9 + 1)) for x in range(60)])
    line = fed([(x % 9 + 1, 7.0 + 2.0 * (x % 9 + 1)) for x in range(120)], line)
    assert line.slope == pytest.approx(2.0, rel=0.02)
    assert line.at(5) == pytest.approx(17.0, rel=0.02)


def test_without_variation_the_slope_stays_and_the_level_follows():
    line = fed([(4, 1.0), (4, 1.2)])
    assert not line.known
    line = fed([(1, 2.0), (9, 6.0)] * 8)
    line = fed([(5, 10.0)] * 200, line)
    assert line.slope == pytest.approx(0.5, abs=0.1)
    assert line.at(5) == pytest.approx(10.0, rel=0.01)


def test_it_never_falls():
    assert fed([(1, 5.0), (9, 1.0)] * 4).slope == 0.0


def test_a_cost_begins_at_0_or_above_and_is_in_proportion_while_x_does_not_vary():
    fit = RecentCostFit()
    assert fit.at(5.0) == 0.0
    for _ in range(3):
        fit.add(4.0, 8.0)
    assert (fit.slope, fit.at(0.0)) == (pytest.approx(2.0), pytest.approx(0.0, abs=1e-12))
    for x in (1.0, 2.0, 8.0) * 20:
        fit.add(x, 9.0 + 0.5 * x)
    assert (fit.slope, fit.at(0.0)) == (pytest.approx(0.5, abs=0.05), pytest.approx(9.0, abs=0.3))
    for x in (1.0, 2.0, 8.0) * 100:
        fit.add(x, x * x)
    assert fit.at(0.0) >= 0.0
