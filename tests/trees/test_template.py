"""Static trees: the published counts, the best shape for a number of nodes, and what is refused."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from contracts.kit import context_for, make_policy
from contracts.proposing import Proposing
from trees.laws import every_tree

from specchat.core.budget import Budget
from specchat.core.tree import ROOT, Guess
from specchat.errors import UsageError
from specchat.trees import TREE_POLICIES
from specchat.trees.options import TemplateOptions
from specchat.trees.template import Template, best_paths, worth

RATES = (0.5, 0.2, 0.1)
WIDE = Budget(80, 6, 8)


def ranks(tree, node, width, context):
    """A drafter whose guess of rank r is token r."""
    return [Guess(rank) for rank in range(min(width, 20))]


def paths_of(tree):
    return {tuple(tree.path_tokens(node)) for node in range(1, len(tree))}


def grow(budget=WIDE, drafter=None, **options):
    return make_policy(TREE_POLICIES["template"], **options).grow(drafter or Proposing(ranks), context_for(), budget)


def test_the_default_is_the_published_tree_of_80_nodes():
    tree = grow()
    assert tree.drafted == 80
    by_depth = Counter(tree.depths)
    assert [by_depth[depth] for depth in range(1, 7)] == [8, 21, 25, 15, 8, 3]


@pytest.mark.parametrize("nodes", [1, 5, 16, 40, 79])
def test_fewer_nodes_are_the_part_of_most_worth(nodes):
    rates = TemplateOptions().by_rank()
    whole, part = paths_of(grow()), paths_of(grow(Budget(nodes, 6, 8)))
    assert len(part) == nodes
    assert part < whole
    assert min(worth(path, rates) for path in part) >= max(worth(path, rates) for path in whole - part) - 1e-12


def test_the_budget_bounds_ranks_and_depth():
    tree = grow(Budget(80, 3, 2))
    assert max(tree.depths) == 3
    assert max(max(path) for path in paths_of(tree)) == 1


@pytest.mark.parametrize("nodes", range(1, 8))
@pytest.mark.parametrize("rates", [RATES, (0.9, 0.05, 0.04), (0.3, 0.29, 0.28)], ids=str)
def test_the_best_shape_is_as_good_as_any_by_brute_force(rates, nodes):
    ours = best_paths(rates, Budget(nodes, 3, 3))
    best = max(sum(worth(path, rates) for path in tree) for tree in every_tree(nodes, 3, 3))
    assert len(ours) == nodes
    assert sum(worth(path, rates) for path in ours) == pytest.approx(best, abs=1e-12)


def test_without_counts_the_shape_is_the_best_for_the_nodes():
    rates = TemplateOptions().by_rank()
    assert paths_of(grow(Budget(12, 4, 4), counts="")) == set(best_paths(rates, Budget(12, 4, 4)))


def test_a_shape_may_be_given_node_by_node():
    assert paths_of(grow(paths="0,1,0-0, 0-1,1-0,0-0-0")) == {(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0)}


def test_one_call_per_level_and_only_about_nodes_that_get_children():
    drafter = Proposing(ranks)
    grow(drafter=drafter, paths="0,1,0-0,0-0-0")
    assert [len(asked) for asked in drafter.asked] == [1, 1, 1]
    assert drafter.widths == [2, 1, 1]


def test_a_drafter_with_few_guesses_leaves_gaps_without_harm():
    def one(tree, node, width, context):
        return [Guess(0)]

    assert paths_of(grow(drafter=Proposing(one))) == {(0,) * depth for depth in range(1, 7)}


def test_a_repeated_guess_takes_no_second_subtree():
    def same(tree, node, width, context):
        return [Guess(3)] * width

    tree = grow(drafter=Proposing(same), paths="0,1,0-0,1-0,1-1")
    assert tree.drafted == 2
    assert len(tree.draws(ROOT)) == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"paths": "0,0-1"}, "0-1 but not 0-0"),
        ({"paths": "0-0"}, "0-0 but not 0"),
        ({"paths": "1"}, "1 but not 0"),
        ({"paths": "a"}, "must be ranks from 0"),
        ({"paths": "0--1"}, "must be ranks from 0"),
        ({"counts": "8,0"}, "whole numbers from 1"),
        ({"rates": "0.1,0.5"}, "falling"),
        ({"rates": ""}, "falling"),
        ({"rates": "1.5"}, "falling"),
    ],
    ids=str,
)
def test_shapes_that_are_no_trees_are_refused_by_name(options, words):
    with pytest.raises(UsageError, match=words):
        TemplateOptions(**options)


def test_shapes_are_closed_whatever_the_budget():
    template = Template(TemplateOptions())
    for nodes, depth, width in itertools.product((1, 3, 20, 80), (1, 2, 6), (1, 3, 8)):
        shape = set(template.shape(Budget(nodes, depth, width)))
        for path in shape:
            assert path[:-1] in shape | {()}
            assert path[-1] == 0 or (*path[:-1], path[-1] - 1) in shape
