"""The index of runs gives what a search through the text gives, without searching."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from indexes.operations import operations

from specchat.indexes.ngrams import NgramIndex

TEXTS = st.lists(st.integers(0, 3), max_size=40)


def searched(text, run, shortest, longest, limit):
    """Tokens after the longest suffix of the run first, of several places the most recent first."""
    found: dict[int, int] = {}
    for size in range(min(longest, len(run)), shortest - 1, -1):
        suffix = run[len(run) - size :]
        for place in range(len(text) - 1, size - 1, -1):
            if text[place - size : place] == suffix:
                found.setdefault(text[place], size)
    return list(found.items())[:limit]


@given(
    TEXTS, st.lists(st.integers(0, 3), min_size=1, max_size=5), st.integers(1, 3), st.integers(0, 2), st.integers(1, 5)
)
def test_continuations_are_what_a_search_through_the_text_finds(text, run, shortest, more, limit):
    index = NgramIndex(shortest, shortest + more)
    index.become(text)
    assert index.continuations(run, limit) == searched(text, run, shortest, shortest + more, limit)


@given(TEXTS, st.lists(st.integers(0, 3), min_size=1, max_size=5), st.integers(1, 4))
def test_matches_count_what_followed_each_of_the_longest_runs(text, run, most):
    index = NgramIndex(1, 4)
    index.become(text)
    expected = []
    for size in range(min(4, len(run)), 0, -1):
        counts = Counter(text[i] for i in range(size, len(text)) if text[i - size : i] == run[-size:])
        expected += [(size, counts)] if counts else []
    assert index.matches(run, most) == expected[:most]


@given(TEXTS, TEXTS)
def test_a_text_that_changed_is_indexed_anew_and_one_that_grew_goes_on(before, after):
    index, fresh = NgramIndex(1, 3), NgramIndex(1, 3)
    index.become(before)
    index.become(after)
    fresh.become(after)
    assert len(index) == len(after)
    assert index.continuations(after[-3:], 9) == fresh.continuations(after[-3:], 9)


def test_a_look_into_a_long_repetitive_text_costs_no_more_than_into_a_short_one():
    counts = []
    for length in (100, 8000):
        index = NgramIndex(1, 4)
        index.become([token % 3 for token in range(length)])
        counts.append(operations(index.continuations, [0, 1, 2, 0], 8))
    assert counts[1] <= counts[0]
