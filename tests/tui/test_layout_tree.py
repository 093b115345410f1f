"""The tree always fits its room, and never hides an accepted token without saying so."""

from __future__ import annotations

import math
import time

import pytest
from fake import round_at, rounds_of, tokens_of
from hypothesis import given, settings
from hypothesis import strategies as st

from specchat.engine import events as ev
from specchat.tui.layout_tree import ASCII, UNICODE, fitting_mode, layout, picture_of
from specchat.tui.layout_tree.marks import label
from specchat.tui.rows import width_of

texts = st.sampled_from(["", " the", "\n", "\t", "你好", " 🎉", "⟨e2⟩", "[red]", "\x1b[31m", "internationally", "a"])
modes = st.sampled_from(["auto", "river", "log", "strip"])


@st.composite
def any_round(draw: st.DrawFn) -> ev.RoundDone:
    count = draw(st.integers(1, 24))
    parents = [-1, *(draw(st.integers(0, index - 1)) for index in range(1, count))]
    path: list[int] = []
    node = 0
    while children := [i for i, p in enumerate(parents) if p == node and i > 0]:
        if draw(st.booleans()):
            break
        node = draw(st.sampled_from(children))
        path.append(node)
    reasons = ["accepted" if i == 0 or i in path else draw(st.sampled_from(["rejected", "unreached", "pruned", "cut"]))
               for i in range(count)]  # fmt: skip
    logprobs = [draw(st.none() | st.floats(-30, 0.1) | st.just(math.nan)) for _ in range(count)]
    bonus = draw(st.none() | st.just(3))
    return ev.RoundDone(
        1, 0, 0.0, 1, {}, ev.Tree(list(range(count)), parents, [draw(texts) for _ in range(count)], [], logprobs),
        ev.Verdict(path, bonus, draw(texts), None, reasons), [], ev.Timings(0, 0, 0),
    )  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(any_round(), st.integers(1, 70), st.integers(1, 30), modes, st.sampled_from([UNICODE, ASCII]))
def test_every_row_fits_the_room_it_is_given(round, width, height, mode, marks):
    rows = layout(round, width, height, mode, marks)
    assert len(rows) <= height
    assert all(width_of(row) <= width for row in rows)


@settings(max_examples=400, deadline=None)
@given(any_round(), st.integers(24, 70), st.integers(1, 30), modes)
def test_every_accepted_token_is_on_the_screen_or_said_to_be_left_out(round, width, height, mode):
    rows = layout(round, width, height, mode)
    shown = "".join(text for row in rows for text, _ in row)
    elided = any("…" in text and any(c.isdigit() for c in text) for row in rows for text, _ in row)
    counted = f"●{len(round.verdict.path)}" in shown
    accepted = sum(text == "●" for row in rows for text, role in row if role == "accepted")
    assert accepted == len(round.verdict.path) or elided or counted


@settings(max_examples=200, deadline=None)
@given(any_round(), st.integers(38, 70))
def test_the_river_runs_along_the_top(round, width):
    rows = layout(round, width, 30, "river")
    top = [text for text, role in rows[0] if role in ("root", "accepted", "bonus") and text not in "●★"]
    spine = [node.label for node in picture_of(round, UNICODE).spine if node.label not in "●★"]
    assert top == spine[: len(top)]


def test_white_space_of_tokens_can_be_seen_and_long_ones_are_cut_by_cells():
    assert label(" a\n\t", UNICODE) == "·a⏎⇥"
    assert label("你好你好你好", UNICODE) == "你好你好…"
    assert label("", UNICODE) == "∅"
    assert label("\x1b[0m", UNICODE) == "␛[0m"
    assert label("你 b", ASCII).isascii()


def test_a_plain_round_is_one_token_in_every_mode():
    plain = round_at(0, ["a", "b", "c"], 1, 0, 1)
    plain = ev.RoundDone(1, 0, 0.1, 9, {"nodes": 0}, ev.Tree([0], [-1], ["a"], [], [None]),
                         ev.Verdict([], 3, " b", -0.1, ["accepted"]), plain.pieces, plain.timings)  # fmt: skip
    assert ["".join(t for t, _ in row) for row in layout(plain, 40, 10)] == ["a━★·b"]
    assert "★ ·b" in "".join(t for t, _ in layout(plain, 20, 10, "log")[1])
    assert "".join(t for t, _ in layout(plain, 20, 1)[0]) == "a★·b"


def test_ascii_marks_leave_nothing_else_on_the_screen():
    for round in rounds_of():
        for row in layout(round, 40, 12, "river", ASCII):
            assert "".join(text for text, _ in row).isascii()


@pytest.mark.parametrize(("width", "height", "mode"), [(40, 12, "river"), (28, 12, "log"), (40, 1, "strip")])
def test_auto_chooses_by_the_room(width, height, mode):
    assert fitting_mode("auto", width, height) == mode


def test_a_long_path_flows_on_in_the_next_row():
    words = tokens_of("one two three four five six seven eight nine ten eleven twelve")
    rows = layout(round_at(0, words, 1, 10, 1), 40, 12, "river")
    assert "".join(t for t, _ in rows[0]).startswith("one━●·two━●·three")
    assert any("★·twelve" in "".join(t for t, _ in row) for row in rows[1:])


def test_a_frame_is_laid_out_in_a_few_milliseconds():
    rounds = rounds_of()
    layout(rounds[0], 40, 20)
    begin = time.process_time()
    for round in rounds:
        layout(round, 40, 20)
    assert (time.process_time() - begin) / len(rounds) < 0.004
