"""EAGLE-2 expands the surest nodes of each level, and keeps the surest of all it has seen."""

from __future__ import annotations

import pytest
from contracts.kit import make_policy
from trees.laws import IID, POINT, Costly, V, context, drawing, law, likely, paths_of, value

from specchat.core.budget import Budget
from specchat.trees import TREE_POLICIES


def eagle2(**options):
    return make_policy(TREE_POLICIES["eagle2"], **options)


def published(nodes, depth, width, expand, seed):
    """The two phases word for word: expand the top of each level to the last, then take the N of most confidence."""
    level, seen = [()], []
    for _ in range(depth):
        grown = []
        for path in level:
            best = law(path, seed).topk(width).indices.tolist()
            grown += [(*path, token) for token in best]
        seen += grown
        level = sorted(grown, key=lambda path: -value(path, seed))[:expand]
    return set(sorted(seen, key=lambda path: (-value(path, seed), len(path)))[:nodes])


@pytest.mark.parametrize("expand", [1, 2, 5])
@pytest.mark.parametrize(("nodes", "depth", "width"), [(1, 3, 2), (5, 3, 3), (12, 4, 3), (30, 5, 2), (40, 4, 4)])
def test_it_is_the_published_expansion_and_reranking(nodes, depth, width, expand):
    for seed in range(4):
        tree = eagle2(expand=expand).grow(likely(seed), context(), Budget(nodes, depth, width))
        assert paths_of(tree) == published(nodes, depth, width, expand, seed)


def test_no_level_has_more_nodes_expanded_than_the_option_says_and_each_is_one_pass():
    drafter = Costly(likely(2))
    eagle2(expand=3).grow(drafter, context(), Budget(60, 4, V))
    assert [len(asked) for asked in drafter.inner.asked] == [1, 3, 3, 3]


def test_draws_become_points_because_their_tokens_decide():
    tree = eagle2().grow(drawing(IID, 1), context(), Budget(12, 3, 3))
    draws = [draw for node in range(len(tree)) for draw in tree.draws(node)]
    assert {draw.guess.kind for draw in draws} == {POINT}
    assert all(draw.guess.q is not None for draw in draws), "the law stays with a point, for rules that compare"
