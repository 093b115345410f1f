"""What is measured before anybody chats: the denominator is never what a disturbed moment made it."""

import pytest
from contracts.kit import scripted_draft, scripted_target

from specchat.decoding import profiling
from specchat.decoding.plain import PlainCurve


@pytest.mark.parametrize("disturbed", [0, 1])
def test_a_disturbed_moment_does_not_slow_the_denominator(monkeypatch, disturbed):
    curves = [PlainCurve(((64, 0.004), (512, 0.005))), PlainCurve(((64, 0.004), (512, 0.005)))]
    curves[disturbed] = PlainCurve(((64, 0.009), (512, 0.004)))
    monkeypatch.setattr(profiling, "measure_plain", lambda target, interrupted: curves.pop(0))
    plain, _ = profiling.measure(scripted_target(), scripted_draft())
    assert plain.points == ((64, 0.004), (512, 0.004))


@pytest.mark.parametrize("after", [0, 3, 40])
def test_whoever_interrupts_gets_nothing_and_an_empty_cache(after):
    asked = 0

    def interrupted():
        nonlocal asked
        asked += 1
        return asked > after

    target = scripted_target()
    assert profiling.measure(target, None, interrupted) is None
    assert asked == after + 1, "nothing is measured once somebody has interrupted"
    assert target.cached([0, 0]) == 0


def test_left_alone_it_measures_everything():
    plain, costs = profiling.measure(scripted_target(), scripted_draft())
    assert all(seconds > 0 for _, seconds in (*plain.points, *costs.verify, *costs.draft))
    assert len(costs.draft) == len(profiling.DRAFT_ROWS)


def test_profiles_reach_beyond_the_widest_trees():
    _, costs = profiling.measure(scripted_target(), scripted_draft())
    assert [rows for rows, _ in costs.verify] == list(profiling.VERIFY_ROWS)
    assert costs.verify[-1][0] >= 64
