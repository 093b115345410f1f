"""Measuring the app: the scenarios run, the figures are figures, and the verdicts are right."""

from __future__ import annotations

import math
import sys

import pytest

from specchat.cli.bench import line_of
from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Generate, Load
from specchat.tui.bench.budgets import BudgetFinding
from specchat.tui.bench.scenarios import ratio
from specchat.tui.bench.scripted_engine import TEXTS, ScriptedLink, rounds_of

posix = pytest.mark.skipif(sys.platform == "win32", reason="needs pseudo-terminals")


@pytest.mark.parametrize("text", TEXTS)
def test_the_scripted_rounds_write_the_text_at_the_rate(text):
    rounds = list(rounds_of(TEXTS[text], 250, 100.0, 1))
    told = "".join(piece.text for round in rounds for piece in round.pieces)
    assert told.startswith(TEXTS[text][: len(told)])
    assert rounds[-1].at_s == pytest.approx(2.5, abs=0.05)
    for round in rounds:
        assert len(round.verdict.reasons) == len(round.tree.tokens)
        assert all(0 <= parent < child for child, parent in enumerate(round.tree.parents[1:], 1))


def test_the_scripted_engine_answers_and_ends():
    link = ScriptedLink(lambda: None, TEXTS["prose"], 20, 10_000.0)
    link.send(Load({}))
    link.send(Generate(3, []))
    assert link.done.wait(60)
    kinds = [type(event) for event in link.drain()]
    assert kinds[:3] == [ev.Hello, ev.Ready, ev.Started]
    assert kinds[-1] is ev.Finished


def test_a_line_says_the_figure_the_budget_and_whether_it_was_kept():
    line = " ".join(line_of(BudgetFinding("x", 0.3, 0.25, "cores")).split())
    assert line == "x 30.0 % of a core ≤ 25.0 % of a core NOT KEPT"
    assert line_of(BudgetFinding("x", 0.0021, 0.004, "s")).endswith("kept")
    assert line_of(BudgetFinding("x", 1234.0, None, "bytes/s")).endswith("1.2 kB/s")


def test_the_ratio_is_the_median_of_pairs():
    pairs = [({"speeds": [a]}, {"speeds": [b]}) for a, b in ((100.0, 90.0), (50.0, 49.0), (80.0, 20.0))]
    assert ratio(pairs) == pytest.approx(0.9)


@posix
@pytest.mark.e2e
def test_a_scenario_runs_in_a_terminal_of_its_own():
    from specchat.tui.bench.budgets import measured

    result = measured((80, 24), scenario="idle", text="prose", tokens=20, rate=200.0, seconds=0.5)
    assert result["timers"] == 0
    assert result["bytes_per_s"] == 0


@posix
@pytest.mark.e2e
def test_the_first_paint_is_seen_in_a_terminal(monkeypatch):
    from specchat.tui.bench import budgets

    monkeypatch.setattr(budgets, "STARTS", 1)
    assert all(math.isfinite(finding.value) for finding in budgets.first_paint())
