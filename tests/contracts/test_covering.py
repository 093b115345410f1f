"""The covering array leaves out no pair, and is small."""

from __future__ import annotations

from itertools import combinations, product

import pytest
from contracts.covering import covering, covering_rows


@pytest.mark.parametrize("sizes", [(3, 4), (9, 10, 13), (2, 21, 12, 6), (1, 5, 1), (21, 12, 13, 5, 2)], ids=str)
def test_every_two_values_of_two_columns_meet(sizes):
    rows = covering_rows(sizes)
    for a, b in combinations(range(len(sizes)), 2):
        assert {(row[a], row[b]) for row in rows} == set(product(range(sizes[a]), range(sizes[b])))


def test_there_are_little_more_rows_than_pairs_of_the_two_longest_columns():
    assert len(covering_rows((21, 12, 13, 5, 2))) <= 1.15 * 21 * 13
    assert len(covering_rows((9, 10, 13))) <= 1.15 * 10 * 13


def test_no_row_comes_twice():
    rows = covering_rows((9, 10, 13))
    assert len(rows) == len(set(rows))


def test_a_parameter_with_several_values_stands_for_several_names():
    rules = [pytest.param("follow", 0.0, id="follow-greedy"), pytest.param("follow", 0.8, id="follow-warm")]
    made = covering([pytest.param("suffix", id="suffix")], rules)
    assert [one.values for one in made] == [("suffix", "follow", 0.0), ("suffix", "follow", 0.8)]
    assert [one.id for one in made] == ["suffix-follow-greedy", "suffix-follow-warm"]
