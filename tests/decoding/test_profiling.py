"""What passes cost, measured while the engine is idle: all of it or nothing, and no impossible times."""

import pytest
from contracts.kit import scripted_draft, scripted_target

from specchat.core.costs import Costs
from specchat.decoding import profiling
from specchat.decoding.pass_times import PLAIN_CONTEXTS, measure_plain


@pytest.mark.parametrize("after", [0, 3, 40])
def test_an_interrupted_measurement_gives_nothing_and_leaves_an_empty_cache(after):
    asked = 0

    def interrupted():
        nonlocal asked
        asked += 1
        return asked > after

    target = scripted_target()
    assert profiling.measure_costs(target, None, interrupted) is None
    assert asked == after + 1, "nothing is measured after an interruption"
    assert target.cached([0, 0]) == 0


def test_left_alone_it_measures_everything():
    costs = profiling.measure_costs(scripted_target(), scripted_draft())
    assert all(seconds > 0 for _, seconds in (*costs.verify, *costs.draft))
    assert [rows for rows, _ in costs.verify] == list(profiling.VERIFY_ROWS)
    assert costs.verify[-1][0] >= 64, "wider trees than 32 nodes are planned too"
    assert len(costs.draft) == len(profiling.DRAFT_ROWS)


def test_passes_of_many_rows_are_timed_less_often(monkeypatch):
    read, timed = [], profiling._timed_read
    monkeypatch.setattr(
        profiling, "_timed_read", lambda model, tree, context: read.append(len(tree)) or timed(model, tree, context)
    )
    profiling.measure_costs(scripted_target(), None)
    assert read.count(8) == read.count(16) == 11
    assert read.count(24) == read.count(64) == 3
    one_after_another = [rows for rows in read if rows in (48, 64)]
    assert one_after_another == [48, 64, 64, 48, 48, 64], "both up and down"


def test_where_a_pass_is_slow_fewer_sizes_are_timed_and_up_to_hundreds_of_rows_where_they_cost_little(monkeypatch):
    read = []

    def timed(model, tree, context):
        read.append(len(tree))
        return max(0.5, len(tree) / 100)

    monkeypatch.setattr(profiling, "_timed_read", timed)
    costs = profiling.measure_costs(scripted_target(), None)
    assert costs.verify == (*((2**i, 0.5) for i in range(6)), (64, 0.64), (128, 1.28), (256, 2.56))
    assert read.count(256) == 3
    assert len(read) == 3 * 9 + 3, "three times each, after three passes of one row"
    fitting = profiling.measure_costs(scripted_target(), None, fits=lambda rows: rows <= 32)
    assert fitting.verify == tuple((2**i, 0.5) for i in range(6))


def test_plain_decoding_is_timed_at_several_contexts():
    target = scripted_target()
    assert [context for context, seconds in measure_plain(target) if seconds > 0] == list(PLAIN_CONTEXTS)
    assert target.cached([0, 0]) == 0


@pytest.mark.parametrize(
    ("node_s", "plausible"), [(None, True), (0.0, True), (-1.0, False), (float("nan"), False), (4.0, False)]
)
def test_a_node_that_takes_as_long_as_a_pass_is_not_believed(node_s, plausible):
    assert Costs(((1, 4.0), (2, 4.1)), node_s=node_s).plausible == plausible


@pytest.mark.parametrize(
    ("verify", "draft", "plausible"),
    [
        (((1, 4.0), (2, 4.1), (4, 6.0)), (), True),
        (((1, 4.0), (2, 3.9), (4, 6.0)), ((1, 1.0), (4, 0.99)), True),
        (((1, 8.0), (2, 4.1), (4, 9.0)), (), False),
        (((1, 4.0), (2, 7.0), (4, 6.0)), (), False),
        (((1, 4.0), (2, 5.0)), ((1, 2.0), (4, 1.0)), False),
        (((1, 0.0), (2, 5.0)), (), False),
        ((), (), False),
        (((1, 4.0),), (), False),
        (((2, 4.0), (1, 5.0)), (), False),
        (((1, 4.0), (1, 5.0)), (), False),
        (((0, 4.0), (1, 5.0)), (), False),
        (((1, 4.0), (1 << 60, 5.0)), (), False),
        (((1, 4.0), (2, 5.0)), ((4, 1.0),), False),
    ],
)
def test_a_larger_pass_that_was_cheaper_or_rows_that_do_not_ascend_cannot_be_true(verify, draft, plausible):
    assert Costs(verify, draft).plausible is plausible
