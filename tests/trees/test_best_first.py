"""Best first grows the tree of most worth, draws included, in few calls, and never looks at a draw's own token."""

from __future__ import annotations

import itertools
import math
from functools import cache

import pytest
import torch
from contracts.kit import make_policy
from contracts.proposing import Proposing
from trees.laws import IID, POINT, WOR, Costly, V, context, drawing, law, likely, paths_of, saved, value

from specchat.core.budget import Budget
from specchat.core.seams import Drafter
from specchat.core.tree import ROOT, Guess, TokenTree
from specchat.trees import TREE_POLICIES


def best_first(**options):
    return make_policy(TREE_POLICIES["best_first"], **{"floor": 0.0, **options})


FLAT = next(s for s in range(999) if 0.5 < float(law((), s).max()) < 0.65 and float(law((), s).min()) > 0.05)
"""A seed whose law at the root leaves room for second draws."""


@cache
def all_trees(nodes, depth, width):
    """All trees with so many nodes, each a set of paths."""
    grown = {frozenset()}
    for _ in range(nodes):
        longer = set()
        for tree in grown:
            for parent in ((), *tree):
                siblings = sum(path[:-1] == parent for path in tree if path)
                if len(parent) < depth and siblings < width:
                    longer |= {tree | {(*parent, token)} for token in range(V) if (*parent, token) not in tree}
        grown = longer
    return grown


@cache
def best_sum(nodes, depth, width, seed=0) -> float:
    """The largest sum of path values of all trees with so many nodes, by trying all of them."""
    values = cache(lambda path: value(path, seed))
    return max(sum(map(values, tree)) for tree in all_trees(nodes, depth, width))


@pytest.mark.parametrize("batch", [0, 1, 3])
@pytest.mark.parametrize(
    ("nodes", "depth", "width"), [(1, 3, 4), (2, 3, 4), (3, 3, 4), (4, 3, 4), (4, 2, 2), (5, 3, 2)]
)
def test_no_tree_of_as_many_nodes_is_worth_more(nodes, depth, width, batch):
    for seed in range(3):
        tree = best_first(batch=batch).grow(likely(seed), context(), Budget(nodes, depth, width))
        assert tree.drafted == nodes
        assert saved(tree, seed) == pytest.approx(best_sum(nodes, depth, width, seed), abs=1e-12)


def test_no_tree_of_six_nodes_is_worth_more():
    tree = best_first().grow(likely(1), context(), Budget(6, 3, 2))
    assert saved(tree, 1) == pytest.approx(best_sum(6, 3, 2, 1), abs=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_it_is_at_least_as_good_as_every_fixed_expansion_of_as_many_nodes(seed):
    compared = 0
    for widths in itertools.product((1, 2, 3), repeat=3):
        budget = Budget(200, 3, 4)
        fixed = make_policy(TREE_POLICIES["expansion"], widths=",".join(map(str, widths)))
        tree = fixed.grow(likely(seed), context(), budget)
        ours = best_first().grow(likely(seed), context(), Budget(tree.drafted, 8, 4))
        assert ours.drafted == tree.drafted
        assert saved(ours, seed) >= saved(tree, seed) - 1e-12
        compared += saved(ours, seed) > saved(tree, seed) + 1e-9
    assert compared > 10, "most fixed shapes are worse"


@pytest.mark.parametrize("kind", [POINT, WOR])
def test_a_draft_model_runs_at_most_one_pass_per_level(kind):
    for seed in range(5):
        drafter = Costly(likely(seed) if kind is POINT else drawing(kind, seed))
        tree = best_first().grow(drafter, context(), Budget(16, 5, 3))
        assert tree.drafted == 16
        assert drafter.passes <= 5


def test_where_asking_costs_nothing_it_asks_about_fewer_nodes_and_grows_the_same_tree():
    for seed in range(5):
        cheap, costly = likely(seed), Costly(likely(seed))
        trees = [best_first().grow(drafter, context(), Budget(40, 8, 4)) for drafter in (cheap, costly)]
        assert len({frozenset(tuple(t.path_tokens(n)) for n in range(len(t))) for t in trees}) == 1
        asked, asked_by_levels = sum(map(len, cheap.asked)), sum(map(len, costly.inner.asked))
        assert asked < asked_by_levels
        assert len(cheap.asked) > costly.passes


def test_one_at_a_time_asks_about_no_node_that_stays_without_hope():
    drafter = likely(2)
    tree = best_first(batch=1).grow(drafter, context(), Budget(6, 6, 4))
    assert all(len(asked) == 1 for asked in drafter.asked)
    assert len(drafter.asked) <= 6
    assert tree.drafted == 6


def test_the_floor_leaves_out_what_is_unlikely():
    tree = best_first(floor=0.2).grow(likely(), context(), Budget(64, 6, 4))
    values = [value(tuple(tree.path_tokens(node))) for node in range(1, len(tree))]
    assert min(values) >= 0.2
    assert 0 < tree.drafted < 64
    assert tree.drafted == sum(
        value(path) >= 0.2 for depth in range(1, 6) for path in itertools.product(range(V), repeat=depth)
    )


# ------------------------------------------------------------------------------------------------- draws


def heap_tree(drafter, context, budget, seed=0):
    """DySpec word for word: pop the slot of most worth, take one draw, push its subtree and the next sibling's slot."""
    tree, laws = TokenTree(context.root, V), {}
    slots = [(1.0, 0, ROOT, 0)]  # (worth, order, node, which draw)
    left = {ROOT: 1.0}
    order = 0
    while slots and sum(len(tree.draws(n)) for n in range(len(tree))) < budget.nodes:
        order += 1
        slots.sort(key=lambda slot: (-slot[0], slot[1]))
        worth, _, node, which = slots.pop(0)
        if node not in laws:
            if tree.depths[node] == budget.depth:
                continue
            laws[node] = drafter.propose(tree, [node], budget.width, context)[0]
        if which >= len(laws[node]):
            continue
        guess = laws[node][which]
        chance = float(guess.q[guess.token]) / left[node]
        child = tree.add(node, guess)
        left[node] -= float(guess.q[guess.token])
        left[child] = 1.0
        slots.append((worth * chance, 2 * order, child, 0))
        slots.append((worth * (1.0 - chance), 2 * order + 1, node, which + 1))
    return tree


class Keyed(Drafter):
    """Draws whose noise depends on the path, so that two ways of growing meet the same draws."""

    def __init__(self, seed):
        self.seed = seed

    def propose(self, tree, frontier, width, context):
        return [self.propose_at(tree.path_tokens(node), width) for node in frontier]

    def propose_at(self, path, width):
        q = law(path, self.seed)
        generator = torch.Generator().manual_seed(hash((9, self.seed, *path)) % 2**31)
        tokens = torch.multinomial(q, min(width, V), generator=generator).tolist()
        return [Guess(token, WOR, q, math.log(q[token]), "keyed") for token in tokens]


@pytest.mark.parametrize("nodes", [1, 3, 7, 12])
def test_with_draws_it_is_the_tree_of_the_published_heap(nodes):
    for seed in range(12):
        budget = Budget(nodes, 4, 3)
        ours = best_first().grow(Keyed(seed), context(), budget)
        assert paths_of(ours) == paths_of(heap_tree(Keyed(seed), context(), budget, seed))


@pytest.mark.parametrize("kind", [IID, WOR])
def test_a_draw_that_stays_is_distributed_as_its_q(kind):
    """The first draw at the root, and the second one, which is there only where the first left it enough."""
    counts = {"second": torch.zeros(V, V), "stays": torch.zeros(V, 2)}
    q = law((), FLAT)
    for seed in range(1500):
        tree = best_first().grow(drawing(kind, FLAT), context(seed), Budget(2, 3, 3))
        draws = tree.draws(ROOT)
        first = draws[0].guess.token
        counts["stays"][first, int(len(draws) > 1)] += 1
        if len(draws) > 1:
            counts["second"][first, draws[1].guess.token] += 1
    assert 300 < float(counts["stays"][:, 1].sum()) < 1200, "whether a second draw happens does vary"
    tested = 0
    for first in range(V):
        row = counts["second"][first]
        if row.sum() < 80:
            continue
        expected = q.clone()
        if kind is WOR:
            expected[first] = 0.0
        expected = expected / expected.sum()
        error = 4.5 * (expected * (1 - expected) / row.sum()).sqrt() + 1e-9
        assert bool(((row / row.sum() - expected).abs() <= error).all())
        tested += 1
    assert tested >= 2
    firsts = counts["stays"].sum(dim=1) / counts["stays"].sum()
    assert bool(((firsts - q).abs() <= 4.5 * (q * (1 - q) / 1500).sqrt()).all())


def test_reranking_draws_by_their_token_would_show():
    """The control of the test above: the same search, were draws to compete with what their token is worth."""
    counts, q = torch.zeros(V), law((), FLAT)
    for seed in range(800):
        context_, tree = context(seed), TokenTree(1, V)
        draws = drawing(IID, FLAT).propose(tree, [ROOT], 3, context_)[0]
        best = max(draws, key=lambda guess: guess.logprob)
        counts[best.token] += 1
    assert float(((counts / 800 - q).abs() / (q * (1 - q) / 800).sqrt()).max()) > 6


def test_draws_keep_their_order_and_come_without_gaps():
    drafter = Keyed(FLAT)
    tree = best_first().grow(drafter, context(3), Budget(10, 4, 4))
    for node in range(len(tree)):
        kept = [draw.guess.token for draw in tree.draws(node)]
        assert kept == [guess.token for guess in drafter.propose_at(tree.path_tokens(node), 4)][: len(kept)]
        assert len(kept) == len(set(kept))
    assert any(len(tree.draws(node)) > 1 for node in range(len(tree)))


def test_points_of_one_token_share_a_place():
    def twice(tree, node, width, context):
        return [Guess(2, logprob=math.log(0.6), proposer=name) for name in "ab"] + [Guess(3, logprob=math.log(0.3))]

    tree = best_first().grow(Proposing(twice), context(), Budget(2, 1, 3))
    assert tree.tokens[1:] == [2, 3]
    assert [draw.guess.proposer for draw in tree.draws(ROOT)] == ["a", "b", ""]
