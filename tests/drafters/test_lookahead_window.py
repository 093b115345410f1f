"""The window of lookahead decoding: which rows it has, and which n-grams come out of it."""

from __future__ import annotations

import pytest

from specchat.drafters.lookahead import LookaheadWindow, NgramPool


def begun(columns: int, ngram: int) -> LookaheadWindow:
    window = LookaheadWindow(columns, ngram)
    window.begin(range(100, 200))
    return window


def path(window: LookaheadWindow, row: int | None) -> list[int]:
    """The tokens of the window down to a row."""
    rows, found = window.rows(), []
    while row is not None:
        found.append(rows[row].token)
        row = rows[row].after
    return found[::-1]


@pytest.mark.parametrize(("columns", "ngram"), [(2, 2), (3, 2), (3, 3), (5, 4), (7, 5)])
def test_every_column_is_the_trunk_down_to_its_place_and_then_its_own_branch(columns, ngram):
    window = begun(columns, ngram)
    for age in range(6):
        assert window.size == len(window.rows()) == columns - 1 + columns * (ngram - 2)
        trunk = [row.token for row in window.rows()[: columns - 1]]
        for column, tip in enumerate(window.tips()):
            tokens = path(window, tip)
            assert tokens[:column] == trunk[:column]
            assert len(tokens) == column + ngram - 2
        window.advance(7, range(1000 * age, 1000 * age + columns))


def test_a_columns_guesses_of_later_and_later_rounds_are_its_ngram():
    window = begun(3, 4)
    rounds = [window.advance(root, [10 * root + column for column in range(3)]) for root in (1, 2, 3, 4)]
    assert rounds[:2] == [[], []], "the branches still hold tokens of the text"
    assert [ngram[1:] for ngram in rounds[2]] == [(10, 20, 30), (11, 21, 31), (12, 22, 32)]
    assert rounds[3] == [(4, 20, 30, 40), (11, 21, 31, 41), (12, 22, 32, 42)], "keys are the root and what moved up"


def test_the_longest_beginning_of_an_ngram_answers_first_and_the_latest_of_equals():
    pool = NgramPool(3, 8)
    for ngram in [(1, 2, 3), (2, 9, 9), (1, 2, 4), (5, 2, 6)]:
        pool.add(ngram)
    assert pool.continuations([0, 1, 2], 8) == [(4, 2), (3, 2), (9, 1)]
    assert pool.continuations([0, 1, 2], 1) == [(4, 2)]
    assert pool.continuations([1], 8) == [(2, 1)]
    assert pool.continuations([3], 8) == []
    pool.add((1, 2, 3))
    assert pool.continuations([1, 2], 2) == [(3, 2), (4, 2)]


def test_of_too_many_continuations_the_oldest_goes():
    pool = NgramPool(2, 2)
    for token in (1, 2, 1, 3):
        pool.add((0, token))
    assert pool.continuations([0], 8) == [(3, 1), (1, 1)]


def test_a_pool_is_bounded(monkeypatch):
    monkeypatch.setattr("specchat.drafters.lookahead._MOST_RUNS", 3)
    pool = NgramPool(2, 2)
    for key in (1, 2, 3, 1, 4):
        pool.add((key, 9))
    assert [key for key in range(6) if pool.continuations([key], 1)] == [1, 3, 4]
