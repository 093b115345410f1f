"""A test that goes through rows says which of them failed, and each has its own patches and folder."""

import os

import pytest
from rows import each_row


def test_rows_that_fail_are_named_and_the_others_still_run(tmp_path, monkeypatch):
    seen = []

    @each_row("size", [1, pytest.param(2, id="two"), 3])
    @each_row(("name", "other"), [("a", "b"), ("c", "d")], ids=["first", "second"])
    def written(name, other, size, tmp_path, monkeypatch):
        assert not list(tmp_path.iterdir())
        assert "SPECCHAT_TESTS_ROW" not in os.environ
        monkeypatch.setenv("SPECCHAT_TESTS_ROW", name)
        (tmp_path / name).touch()
        seen.append((name, other, size))
        if size == 3:
            pytest.skip("too large")
        assert (name, size) != ("c", 2), "it is wrong"

    with pytest.raises(AssertionError, match=r"(?s)of 3:\n\[two\] .*of 2:\n\[second\] AssertionError: it is wrong"):
        written(tmp_path=tmp_path, monkeypatch=monkeypatch)
    assert len(seen) == 6


def test_a_test_whose_rows_are_all_skipped_is_skipped():
    @each_row("size", [1, 2])
    def skips(size):
        pytest.skip("not here")

    with pytest.raises(pytest.skip.Exception):
        skips()
