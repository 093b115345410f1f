"""A covering array: few combinations of many values, in which every two values of two columns meet at least once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations, product
from typing import Any

import pytest

Choice = tuple[int, int]
"""A column and the place of a value in it."""


def named(values: Iterable[str]) -> list[Any]:
    """A column of values that are their own names."""
    return [pytest.param(value, id=value) for value in values]


def covering(*columns: Iterable[Any]) -> list[Any]:
    """Test parameters for one `parametrize` over the names of all columns.

    A full product of three families grows with the product of their sizes, and nearly all faults show where two
    certain methods meet. The rows here number little more than the product of the two longest columns. They depend
    on the columns alone, so that every worker collects the same tests.

    Args:
        columns: `pytest.param` values with an id each. One that holds several values stands for several names.
    """
    listed = [list(column) for column in columns]
    rows = covering_rows([len(column) for column in listed])
    chosen = ([column[place] for column, place in zip(listed, row, strict=True)] for row in rows)
    return [
        pytest.param(*(value for one in row for value in one.values), id="-".join(one.id for one in row))
        for row in chosen
    ]


def covering_rows(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Rows of places, one for each column, in which every two places of two columns meet.

    Each row begins with a pair that has not met, of the two longest columns while there is one. Each further column
    takes the value that meets most of the row's values for the first time; of equally good ones the least used.
    """
    order = sorted(range(len(sizes)), key=lambda column: -sizes[column])
    open_pairs = {
        pair: None for a, b in combinations(order, 2) for pair in product(_places(a, sizes), _places(b, sizes))
    }
    used = dict.fromkeys((choice for column in order for choice in _places(column, sizes)), 0)
    rows = []
    while open_pairs:
        row = dict(next(iter(open_pairs)))
        for column in order:
            if column not in row:
                row[column] = _best(column, sizes, row, open_pairs, used)
        for choice in row.items():
            used[choice] += 1
        for pair in combinations(((column, row[column]) for column in order), 2):
            open_pairs.pop(pair, None)
        rows.append(tuple(row[column] for column in range(len(sizes))))
    return rows


def _places(column: int, sizes: Sequence[int]) -> list[Choice]:
    return [(column, place) for place in range(sizes[column])]


def _best(
    column: int,
    sizes: Sequence[int],
    row: dict[int, int],
    open_pairs: dict[tuple[Choice, Choice], None],
    used: dict[Choice, int],
) -> int:
    def value(choice: Choice) -> tuple[int, int]:
        new = sum((choice, other) in open_pairs or (other, choice) in open_pairs for other in row.items())
        return new, -used[choice]

    return max(_places(column, sizes), key=value)[1]
