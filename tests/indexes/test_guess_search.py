"""Trees that compiled code grows of tables made by hand."""

from __future__ import annotations

from array import array

import pytest
from contracts.kit import context_for

from specchat.compiled.build import NativeUnavailable
from specchat.core.budget import Budget
from specchat.core.compiled_guessing import CompiledTable, GrowthPlan
from specchat.indexes.guess_search import GuessSearch

TOKENS = 6
ROOT = 3
"""The last token of the text."""

BY_RANK = array("d", [-0.5, -1.0, -1.5])


def grown(successors):
    """The tokens below the root where it, and no other token, has these successors."""
    try:
        search = GuessSearch(1, 2.0, learns=False)
    except NativeUnavailable as error:
        pytest.skip(str(error))
    count = len(successors)
    table = array("i", [-1] * (TOKENS * count))
    table[ROOT * count : (ROOT + 1) * count] = array("i", successors)
    asked = CompiledTable(table.buffer_info()[0], TOKENS, count, BY_RANK.buffer_info()[0])
    found = search.grow(context_for(vocab_size=TOKENS, prompt=[1, ROOT]), GrowthPlan(Budget(8, 1, 4)), [asked])
    assert isinstance(found, tuple)
    return list(found[1])


@pytest.mark.parametrize(
    ("successors", "tokens"),
    [
        ([4, 0, 2], [4, 0, 2]),
        ([4, -1, 2], [4]),
        ([4, 0, TOKENS], [4, 0]),
        ([TOKENS, 0, 2], []),
        ([-1, 0, 2], []),
        ([], []),
    ],
)
def test_successors_are_proposed_up_to_the_first_that_is_no_token(successors, tokens):
    assert grown(successors) == tokens
