"""Broken lines fit, lose nothing, and break between words where they can."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from specchat.tui.text.cells import bar, clip, cut, padded, spark, width_of, wrap

lines = st.text("ab 你🎉é-\t", max_size=60)


@given(lines, st.integers(1, 30))
def test_screen_lines_cover_the_line_and_fit_apart_from_blanks_at_their_end(text, width):
    lines = wrap(text, width)
    assert "".join(text[a:b] for a, b in lines) == text
    assert lines[0][0] == 0
    assert all(x[1] == y[0] for x, y in pairwise(lines))
    for a, b in lines:
        assert cell_len(text[a:b].rstrip()) <= max(width, 2 if width == 1 else 0)


def test_words_stay_whole_where_they_fit():
    assert [text for a, b in wrap("one two three", 8) if (text := "one two three"[a:b])] == ["one two ", "three"]


@given(st.lists(st.tuples(lines, st.just("x")), max_size=5), st.integers(0, 40))
def test_clipping_and_padding_end_exactly_at_the_edge(line, cells):
    assert width_of(clip(line, cells)) <= cells
    assert width_of(padded(line, cells)) == cells


@given(lines, st.integers(0, 20))
def test_cutting_says_that_something_is_missing(text, cells):
    short = cut(text, cells)
    assert cell_len(short) <= cells
    assert short == text or short.endswith("…") or cells == 0


def test_bars_and_sparks_measure():
    assert (bar(0.5, 4), bar(2, 2), bar(0.0, 2), bar(0.25, 2)) == ("━━  ", "━━", "  ", "╸ ")
    assert spark([0, 1, 8], 8) == " ▁█"
    assert spark([], None) == ""


def test_a_group_of_words_longer_than_the_line_breaks_between_them():
    text = "1.2×\u00a0±\u00a00.3\u00a0(12\u00a0plain\u00a0rounds)"
    assert [text[start:end] for start, end in wrap(text, 16)] == [
        "1.2×\u00a0±\u00a00.3\u00a0(12\u00a0",
        "plain\u00a0rounds)",
    ]
