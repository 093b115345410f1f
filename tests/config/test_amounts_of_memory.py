"""Amounts of memory as users write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specchat.errors import UsageError
from specchat.settings import Settings, memory_text, parse_memory


@pytest.mark.parametrize(
    ("text", "amount"),
    [("2GB", 2 * 10**9), ("1.5 gib", 3 * 2**29), ("800m", 800 * 10**6), ("12345", 12345), ("", 0), (" 1KB ", 1000)],
)
def test_amounts_are_read_with_their_units(text, amount):
    assert parse_memory(text) == amount


@pytest.mark.parametrize("text", ["two", "2TB", "-1GB", "0", "0.0GB", "1e9", "GB", "9" * 400 + "GB", "2GB 3GB", "nan"])
def test_what_is_no_amount_is_refused_with_an_example(text):
    with pytest.raises(UsageError, match="write it like 2GB"):
        Settings().but({"memory": text})


@given(st.integers(1, 10**14))
def test_an_amount_that_is_told_is_enough(amount):
    assert amount <= parse_memory(memory_text(amount)) <= amount + max(10**6, amount // 10)
