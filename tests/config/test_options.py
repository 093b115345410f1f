"""Options as their dataclass declares them, however its annotations are written."""

from __future__ import annotations

import dataclasses

import pytest

from specchat.registry import option, options_of


@pytest.mark.parametrize("written", [(bool, int, float, str), ("bool", "int", "float", "str")])
def test_an_option_has_the_kind_of_its_annotation(written):
    fields = [(f"of_{index}", kind, option(None, "any")) for index, kind in enumerate(written)]
    declared = dataclasses.make_dataclass("Declared", fields)
    assert [one.kind for one in options_of(declared)] == ["bool", "int", "float", "str"]


@pytest.mark.parametrize("written", [list, "int | None", "tuple[int, ...]"])
def test_an_option_of_another_type_is_refused(written):
    declared = dataclasses.make_dataclass("Declared", [("strange", written, option(None, "any"))])
    with pytest.raises(AssertionError, match="option strange has type"):
        options_of(declared)
