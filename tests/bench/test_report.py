"""Figures from made-up replies whose answers can be worked out by hand; tables, JSON and pictures of them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from rich.console import Console

from specchat.bench.check_text import Divergence, SameText
from specchat.bench.circumstances import PeakMemory, circumstances
from specchat.bench.measured_reply import Measured, Work, Written
from specchat.bench.plots import accept_plot_file, draw
from specchat.bench.report import Perplexity, Report, Result, Run, summarise
from specchat.bench.report_tables import reply_lines, report_json, report_tables
from specchat.decoding.teacher_forcing import Margin
from specchat.errors import UsageError


def reply(who: str, question: str, category: str, tokens: int, seconds: float, work: Work | None = None, **more):
    written = Written(
        tuple(range(tokens)), "text", "length", more.get("prefill_s", 0.5), seconds, work, more.get("joules")
    )
    return Measured(who, question, category, 0, 0, (1, 2, 3), 0, written)


WORK = Work(
    rounds=4,
    drafted=12,
    accepted=6,
    draft_s=0.25,
    verify_s=0.5,
    other_s=0.25,
    offered_by_depth=(4, 4, 2),
    accepted_by_depth=(3, 2),
    verify_by_rows={4: (3, 0.3), 1: (1, 0.2)},
)
PLAIN = [reply("plain", "a", "chat", 10, 2.0), reply("plain", "b", "code", 20, 4.0)]
OURS = [reply("auto", "a", "chat", 10, 1.0, WORK), reply("auto", "b", "code", 20, 1.0, WORK)]


def result(name: str, kind: str, own, nodes: int = 4, **more) -> Result:
    return Result(name, kind, {"drafter": "d", "policy": "p", "nodes": nodes}, summarise(PLAIN, own), **more)


def run(*results: Result, dtype: str = "float32") -> Run:
    return Run(
        pair="p",
        target="t",
        draft="d",
        device="cpu",
        dtype=dtype,
        threads=2,
        load_s=1.0,
        weight_bytes=10,
        results=results,
        memory=PeakMemory(1_000_000_000),
        perplexity=Perplexity(12.5, 100),
        notes=("a note [not markup]",),
        measured=(*PLAIN, *OURS),
    )


def report(*runs: Run, complete: bool = True) -> Report:
    return Report(circumstances(), "own", 2, {"max_tokens": 20, "temperature": 0.0}, runs, complete)


WRONG = SameText(1, 2, True, (Divergence(Margin(3, 1, 2, float("inf")), 0.1, "auto", "a", 0),))
FULL = report(
    run(result("plain", "plain", PLAIN), result("auto", "ours", OURS, 4), result("wide", "ours", OURS, 16)),
    run(result("plain", "plain", PLAIN), result("auto", "ours", OURS, 4, same_text=WRONG), dtype="bfloat16"),
)


def test_speeds_are_totals_and_medians():
    everything, chat, code = summarise(PLAIN, OURS)
    assert (everything.tokens, everything.tokens_per_s, everything.median_tokens_per_s) == (30, 15.0, 15.0)
    assert (chat.category, chat.tokens_per_s, code.tokens_per_s) == ("chat", 10.0, 20.0)


def test_the_ratio_is_of_total_times():
    everything, chat, code = summarise(PLAIN, OURS)
    assert (everything.ratio.value, chat.ratio.value, code.ratio.value) == (3.0, 2.0, 4.0)
    assert everything.ratio.low == 2.0
    assert everything.ratio.high == 4.0
    assert everything.with_prompt.value == pytest.approx(7 / 3)


def test_a_ratio_is_taken_at_equal_numbers_of_tokens():
    longer = [reply("auto", "a", "chat", 20, 2.0)]
    assert summarise(PLAIN, longer)[0].ratio.value == 2.0


def test_acceptance_and_the_split_of_time_add_up():
    everything = summarise(PLAIN, OURS)[0]
    assert everything.acceptance_length == 30 / 8
    assert everything.acceptance_rate == 0.5
    assert everything.acceptance_by_depth == (0.75, 0.5, 0.0)
    assert (everything.draft_share, everything.verify_share, everything.other_share) == (0.25, 0.5, 0.25)
    assert everything.verify_by_rows == {1: (2, pytest.approx(0.2)), 4: (6, pytest.approx(0.1))}


def test_energy_is_absent_unless_every_reply_has_it():
    some = [reply("auto", "a", "chat", 10, 1.0, joules=5.0), reply("auto", "b", "code", 20, 1.0)]
    assert summarise(PLAIN, some)[0].joules_per_token is None
    assert summarise(PLAIN, some[:1])[0].joules_per_token == 0.5


def test_replies_without_a_counterpart_are_left_out():
    assert summarise(PLAIN[:1], OURS)[0].replies == 1
    assert summarise([], OURS) == ()


def test_a_wrong_text_makes_the_report_wrong():
    assert not FULL.ok
    assert report(run(result("plain", "plain", PLAIN))).ok


@pytest.mark.parametrize("width", [80, 110])
def test_the_tables_hold_what_was_measured(width):
    console = Console(width=width, record=True, file=None, color_system=None)
    with console.capture() as captured:
        console.print(report_tables(FULL))
    text = captured.get()
    for word in ("plain", "15.0", "3.00", "3.75", "NOT a tie", "12.500", "a note [not markup]", "bfloat16"):
        assert word in text, word


def test_many_contestants_leave_the_names_of_categories_whole():
    others = [result(f"peer {number}", "peer", OURS) for number in range(2, 11)]
    many = report(run(result("plain", "plain", PLAIN), result("auto", "ours", OURS), *others))
    console = Console(width=80)
    with console.capture() as captured:
        console.print(report_tables(many))
    lines = [line.split() for line in captured.get().splitlines()]
    heads = [line for line in lines if line[:2] == ["category", "replies"]]
    numbers = [int(word) for line in heads for word in line if word.isdigit()]
    assert numbers == list(range(1, 11))
    assert sum(line[:1] == ["chat"] for line in lines) == sum(line[:1] == ["code"] for line in lines) == len(heads) == 3


def test_a_note_of_another_engine_steers_no_terminal():
    told = replace(run(result("plain", "plain", PLAIN)), notes=("it cannot read a.gguf: \x1b]0;title\x07",))
    console = Console(width=80)
    with console.capture() as captured:
        console.print(report_tables(report(told)))
    assert "it cannot read a.gguf" in captured.get()
    assert "\x1b" not in captured.get()


def test_an_interrupted_report_says_so():
    console = Console(width=100)
    with console.capture() as captured:
        console.print(report_tables(report(complete=False)))
    assert "interrupted" in captured.get()


def test_the_json_report_is_valid_and_holds_every_reply():
    data = json.loads(report_json(FULL))
    assert data["ok"] is False
    assert data["runs"][0]["results"][1]["groups"][0]["ratio"]["value"] == 3.0
    assert data["runs"][1]["results"][1]["same_text"]["divergences"][0]["margin"]["gap"] is None
    assert len(data["runs"][0]["measured"]) == 4
    assert data["runs"][0]["measured"][0]["prompt"] == 3
    lines = [json.loads(line) for line in reply_lines(FULL)]
    assert len(lines) == 8
    assert lines[0]["tokens"] == list(range(10))


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_a_picture_is_drawn(tmp_path, suffix):
    pytest.importorskip("matplotlib")
    file = tmp_path / f"report{suffix}"
    draw(FULL, file)
    assert file.stat().st_size > 1000


def test_nothing_to_draw_is_said(tmp_path):
    pytest.importorskip("matplotlib")
    with pytest.raises(UsageError, match="nothing to draw"):
        draw(report(run(result("plain", "plain", PLAIN))), tmp_path / "x.png")


def test_a_picture_that_could_not_be_written_is_refused_early(tmp_path):
    with pytest.raises(UsageError, match="must end in"):
        accept_plot_file(tmp_path / "x.jpeg")
    with pytest.raises(UsageError, match="does not exist"):
        accept_plot_file(tmp_path / "no" / "x.png")


def test_without_matplotlib_one_line_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(UsageError, match=r"pip install -e '.\[bench\]'"):
        accept_plot_file(tmp_path / "x.png")
