"""The table of successors holds what it was last told, per token."""

from __future__ import annotations

from specchat.drafters.token_recycling import Successors


def test_a_token_that_was_never_learnt_has_no_successors():
    assert list(Successors(5, 3).after(4)) == []


def test_learning_replaces_one_row_and_no_other():
    table = Successors(5, 3)
    table.learn(1, [4, 0, 2])
    table.learn(2, [1, 1, 1])
    table.learn(1, [3, 4, 0])
    assert [list(table.after(token)) for token in range(5)] == [[], [3, 4, 0], [1, 1, 1], [], []]


def test_a_small_vocabulary_bounds_the_successors():
    assert Successors(2, 8).k == 2
