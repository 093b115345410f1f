"""Nodes added many at a time."""

from __future__ import annotations

import pytest

from specchat.core.tree import ROOT, TokenTree, point
from specchat.errors import ProposalError


def test_nodes_added_at_once_are_those_added_one_by_one():
    parents, tokens = [ROOT, ROOT, 1, 3], [4, 2, 4, 4]
    at_once, one_by_one = TokenTree(7, 9), TokenTree(7, 9)
    assert list(at_once.extend(parents, tokens)) == [1, 2, 3, 4]
    for parent, token in zip(parents, tokens, strict=True):
        one_by_one.add(parent, point(token, None, ""))
    assert (at_once.parents, at_once.tokens, at_once.depths) == (
        one_by_one.parents,
        one_by_one.tokens,
        one_by_one.depths,
    )
    assert at_once.follow([4, 4, 4]) == (1, 3, 4)
    assert list(at_once.extend([4], [0])) == [5]


@pytest.mark.parametrize("token", [-1, 9])
def test_a_node_of_no_token_of_the_vocabulary_is_refused(token):
    with pytest.raises(ProposalError, match=f"token {token}, outside the vocabulary of 9"):
        TokenTree(7, 9).extend([ROOT, ROOT], [1, token])
