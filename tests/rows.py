"""Rows of a table that one test goes through, where collecting a test for each would cost more than running it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet

MOST_FAILURES = 5
"""After so many rows that failed the others are left out."""


def each_row(
    names: str | Sequence[str], values: Iterable[Any], ids: Callable[[Any], object] | Sequence[str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """As `pytest.mark.parametrize`, but the function stays one test, which fails with the names of rows that failed.

    Each row has its own `monkeypatch` and `tmp_path`; other fixtures are the test's. A row that is skipped leaves the
    others. Several of these, one above the other, give every combination.
    """
    argnames = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    table = [ParameterSet.extract_from(row, force_tuple=len(argnames) == 1) for row in values]
    assert table, "a test without rows tests nothing"
    assert not any(row.marks for row in table), "a row is no test, which could be marked"

    def decorated(function: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def every_row(*args: Any, **fixtures: Any) -> None:
            failed: list[str] = []
            skipped = 0
            first: BaseException | None = None
            for number, row in enumerate(table):
                own = dict(fixtures)
                if "tmp_path" in own:
                    own["tmp_path"] = own["tmp_path"] / str(number)
                    own["tmp_path"].mkdir()
                with pytest.MonkeyPatch.context() as patch:
                    if "monkeypatch" in own:
                        own["monkeypatch"] = patch
                    try:
                        function(*args, **own, **dict(zip(argnames, row.values, strict=True)))
                    except pytest.skip.Exception as error:
                        skipped, first = skipped + 1, first or error
                    except (Exception, pytest.fail.Exception) as error:
                        failed.append(f"[{name_of(argnames, number, row, ids)}] {type(error).__name__}: {error}")
                        first = error if len(failed) == 1 else first
                if len(failed) == MOST_FAILURES:
                    break
            if failed:
                raise AssertionError(f"rows failed, of {len(table)}:\n" + "\n".join(failed)) from first
            if skipped == len(table) and first is not None:
                raise first

        left = [one for name, one in signature.parameters.items() if name not in argnames]
        assert len(left) + len(argnames) == len(signature.parameters), f"{function.__name__} takes other arguments"
        every_row.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return every_row

    return decorated


def name_of(
    argnames: Sequence[str], number: int, row: ParameterSet, ids: Callable[[Any], object] | Sequence[str] | None
) -> str:
    """A row in a message: its id, or its values, shortened."""
    if row.id is not None:
        return str(row.id)
    if ids is not None and not callable(ids):
        return str(list(ids)[number])
    shown = []
    for name, value in zip(argnames, row.values, strict=True):
        text = ids(value) if callable(ids) else None
        text = text if text is not None else getattr(value, "__name__", None) or repr(value)
        shown.append(f"{name}={str(text)[:100]}")
    return " ".join(shown)
