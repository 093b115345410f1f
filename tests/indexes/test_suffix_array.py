"""Suffix arrays are in the order that sorting all suffixes gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specchat.indexes.datastore import suffix_array


def by_sorting(tokens):
    return sorted(range(len(tokens)), key=lambda start: tokens[start:])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=60) | st.lists(st.integers(0, 65535), max_size=30))
def test_it_is_the_order_that_sorting_all_suffixes_gives(tokens):
    assert suffix_array(np.array(tokens, np.uint16)).tolist() == by_sorting(tokens)


@pytest.mark.parametrize("tokens", [[], [5], [7] * 300, [1, 2] * 150, [0, *[1] * 64, 0, *[1] * 64]])
def test_repetitions_are_sorted_to_their_ends(tokens):
    assert suffix_array(np.array(tokens, np.uint32)).tolist() == by_sorting(tokens)
