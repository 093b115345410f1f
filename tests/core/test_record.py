"""Records of a round behave as frozen dataclasses do."""

from __future__ import annotations

import dataclasses

from specchat.core.budget import Budget


def test_records_of_equal_fields_are_one_in_a_set_and_differ_where_a_field_does():
    budget = Budget(3, 2, 1)
    other = dataclasses.replace(budget, nodes=4)
    assert {budget, Budget(3, 2, 1), other} == {budget, other}
