"""The arithmetic behind the figures."""

from __future__ import annotations

import msgspec
import pytest
from fake import LOSS, rounds_of, stats_of
from hypothesis import given
from hypothesis import strategies as st

from specchat.engine.protocol import events as ev
from specchat.tui.draw.stats_rows import Facts, plan_of, stats_rows
from specchat.tui.state.reply_figures import Figures, seconds_per_token
from specchat.tui.text import numbers
from specchat.tui.text.cells import width_of

PLAIN = ev.PlainSpeed([(0, 0.02), (1000, 0.04)], "2026-01-01")


def counted(rounds: list[ev.RoundDone], plain: ev.PlainSpeed | None = None) -> Figures:
    figures = Figures(plain)
    for round in rounds:
        figures.add(round)
    return figures


def test_live_figures_agree_with_what_the_rounds_say():
    rounds = rounds_of()
    figures, stats = counted(rounds), stats_of(rounds)
    assert (figures.tokens, figures.drafted, figures.accepted) == (stats.tokens, stats.drafted, stats.accepted)
    assert figures.acceptance_length == pytest.approx(stats.acceptance_length)
    assert figures.acceptance_rate == pytest.approx(stats.acceptance_rate)
    assert figures.accepted_by_depth[0] == sum(bool(r.verdict.path) for r in rounds)


def test_recent_speed_looks_back_two_seconds_only():
    slow = rounds_of(step_s=1.0)[:4]
    figures = counted(slow)
    assert figures.recent_tokens_per_s == pytest.approx(sum(len(r.pieces) for r in slow[2:]) / 2)


def test_the_speed_up_needs_a_denominator_and_says_where_it_comes_from():
    rounds = rounds_of()
    assert counted(rounds).speedup is None
    value, source = counted(rounds, PLAIN).speedup
    assert source == "measured"
    assert value > 0
    figures = counted(rounds)
    figures.finish(ev.Finished(1, "end", "", stats_of(rounds, speedup=1.5, speedup_source="est."), 1.0))
    assert figures.speedup == (1.5, "est.")
    assert "1.5× plain (est.)" in figures.line()


def test_the_plain_curve_is_read_between_its_points():
    assert seconds_per_token(PLAIN, 500) == pytest.approx(0.03)
    assert seconds_per_token(PLAIN, 5000) == 0.04
    assert seconds_per_token(ev.PlainSpeed([], ""), 5) is None


def test_a_plain_reply_claims_no_drafting():
    round = rounds_of("a b c")[0]
    tree = ev.Tree([0], [-1], ["a"], [], [None])
    plain = ev.RoundDone(1, 0, 0.1, 1, {}, tree, ev.Verdict([], 1, "b", None, ["accepted"]), round.pieces[-1:],
                         round.timings)  # fmt: skip
    assert counted([plain], PLAIN).line().endswith("plain decoding")
    assert counted([plain], PLAIN).speedup is None


@given(st.integers(1, 80), st.integers(0, 20), st.integers(0, 60), st.booleans())
def test_the_panel_fits_any_room(width, height, count, lossless):
    figures = counted(rounds_of()[:count], PLAIN)
    facts = Facts(figures, ev.Loss(lossless, "a reason of several words that goes on"), 120, 8192, 2_000_000_000, True)
    rows = stats_rows(facts, width, height)
    assert len(rows) <= height
    if width >= 26:
        assert all(width_of(row) <= width for row in rows)


def test_the_last_rows_to_go_are_the_speed_and_its_ratio():
    facts = Facts(counted(rounds_of(), PLAIN), LOSS, 10, 100, 1)
    words = ["".join(t for t, _ in row) for row in stats_rows(facts, 40, 3)]
    assert words[0].startswith("speed ")
    assert words[1].startswith("speed-up")
    assert "lossless" in words[2]


def test_numbers_are_written_with_their_units():
    assert [numbers.size(n) for n in (12, 1_500, 143_000_000, 1_900_000_000)] == ["12 B", "1.5 kB", "143 MB", "1.9 GB"]
    assert numbers.seconds(65) == "1 min 05 s"
    assert numbers.loading(ev.Loading("measure", "plain", 3, 8, 0, "steps")) == ("measuring plain", 0.375, "3 of 8")
    assert numbers.loading(ev.Loading("read", "x", 0, 0))[1:] == (None, "")


def test_the_plan_of_a_round_says_what_was_chosen_and_why():
    round = rounds_of()[3]
    assert plan_of(round) == f"{len(round.tree.tokens) - 1} nodes: fixed by you"
    alone = ev.Tree([0], [-1], ["a"], [], [None])
    plain = msgspec.structs.replace(round, tree=alone, why="off", budget={"nodes": 0})
    assert plan_of(plain) == "plain: off"
    assert plan_of(msgspec.structs.replace(round, tree=alone)) == "nothing guessed: fixed by you"
    assert plan_of(None) == plan_of(msgspec.structs.replace(round, why="")) == ""
