"""Token counts: the most used first, bounded, and kept as bytes that are checked."""

import pytest

from specchat.drafters import draft_model as token_counts
from specchat.drafters.draft_model import TokenCounts


def test_the_most_used_tokens_come_first_and_of_equals_the_lower():
    counts = TokenCounts(50)
    counts.add([7, 3, 7, 9, 3, 7, 1])
    assert counts.ranked() == [7, 3, 1, 9]


def test_of_too_many_those_that_came_least_are_forgotten(monkeypatch):
    monkeypatch.setattr(token_counts, "_MOST", 4)
    counts = TokenCounts(1000)
    for round_ in range(100):
        counts.add([1, 2, 100 + round_])
        assert len(counts) <= 8
    assert counts.ranked()[:2] == [1, 2]
    assert len(counts.ranked()) == 4


def test_what_was_kept_is_what_was_counted():
    counts, again = TokenCounts(50), TokenCounts(50)
    counts.add([7, 3, 7])
    again.restore(counts.to_bytes())
    assert again.to_bytes() == counts.to_bytes()
    again.add([3, 3])
    assert again.ranked() == [3, 7]
    again.restore(b"")
    assert again.ranked() == []
    assert again.to_bytes() == b""


@pytest.mark.parametrize("data", [b"1234567", bytes(12), bytes(8) * 2, (99).to_bytes(4, "little") + bytes(4)])
def test_bytes_that_are_no_counts_of_this_vocabulary_are_refused(data):
    counts = TokenCounts(50)
    counts.add([7])
    with pytest.raises(ValueError, match="token counts"):
        counts.restore(data)
    assert counts.ranked() == [7], "nothing is lost"
