"""Chains have one branch; expansions have so many children at each depth, breadth first."""

from __future__ import annotations

from collections import Counter

import pytest
from contracts.kit import context_for, make_policy
from contracts.proposing import Proposing, counting_up

from specchat.core.budget import Budget
from specchat.errors import UsageError
from specchat.trees import TREE_POLICIES


def grow(policy, budget, **options):
    return make_policy(TREE_POLICIES[policy], **options).grow(Proposing(counting_up), context_for(), budget)


@pytest.mark.parametrize(("nodes", "depth", "length"), [(9, 5, 5), (3, 5, 3), (1, 1, 1)])
def test_a_chain_is_one_branch_whatever_the_width(nodes, depth, length):
    tree = grow("chain", Budget(nodes, depth, 4))
    assert list(tree.depths) == list(range(length + 1))


def test_an_expansion_has_its_width_at_the_first_depth_and_one_child_below():
    tree = grow("expansion", Budget(50, 4, 3))
    assert Counter(tree.depths) == {0: 1, 1: 3, 2: 3, 3: 3, 4: 3}


def test_an_expansion_has_the_children_that_were_named():
    tree = grow("expansion", Budget(50, 5, 4), widths="3,2,1")
    assert Counter(tree.depths) == {0: 1, 1: 3, 2: 6, 3: 6}


@pytest.mark.parametrize("words", ["513", "3000000000", "9" * 5000, "1,,2", "0", "-1", "²", "3,x"])
@pytest.mark.parametrize("option", ["expansion.widths", "rsd_c.branching", "template.counts"])
def test_counts_that_no_tree_has_are_refused_in_a_short_line(option, words):
    policy, _, name = option.partition(".")
    with pytest.raises(UsageError, match=rf"^{option} = .+ must be whole numbers from 1 to 512") as refused:
        make_policy(TREE_POLICIES[policy], **{name: words})
    assert len(str(refused.value)) < 200


def test_ranks_of_thousands_of_digits_are_refused_in_a_short_line():
    with pytest.raises(UsageError, match=r"^template\.paths = .+ must be ranks") as refused:
        make_policy(TREE_POLICIES["template"], paths="9" * 5000)
    assert len(str(refused.value)) < 200


def test_nodes_run_out_breadth_first():
    tree = grow("expansion", Budget(5, 5, 4), widths="3,2,1")
    assert Counter(tree.depths) == {0: 1, 1: 3, 2: 2}
