"""RSD: siblings without replacement at a set branching, and whole sequences without replacement by a beam."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
import torch
from contracts.kit import make_policy
from contracts.proposing import Proposing, counting_up
from contracts.text_laws import chi_square_p
from trees.laws import WOR, V, context, drawing, law, likely, paths_of, value

from specchat.acceptance.recursion import trials
from specchat.core.budget import Budget
from specchat.core.tree import ROOT, Draw, DrawKind, Guess
from specchat.trees import TREE_POLICIES
from specchat.trees.rsd_s import truncated


def grow(policy, drafter, budget, seed=7, **options):
    return make_policy(TREE_POLICIES[policy], **options).grow(drafter, context(seed), budget)


# --------------------------------------------------------------------------------------------------- RSD-C


def test_every_node_has_the_branching_of_its_depth():
    tree = grow("rsd_c", Proposing(counting_up), Budget(100, 5, 4), branching="3,2,1")
    assert Counter(tree.depths) == {0: 1, 1: 3, 2: 6, 3: 6}
    tree = grow("rsd_c", Proposing(counting_up), Budget(100, 3, 2))
    assert Counter(tree.depths) == {0: 1, 1: 2, 2: 4, 3: 8}


def test_siblings_are_distinct_and_stay_draws_without_replacement():
    tree = grow("rsd_c", drawing(WOR, 1), Budget(60, 3, 3))
    for node in range(len(tree)):
        tokens = [draw.guess.token for draw in tree.draws(node)]
        assert len(tokens) == len(set(tokens))
        assert all(draw.guess.kind is WOR for draw in tree.draws(node))


def test_two_children_of_two_tokens_are_always_enough_and_independent_draws_are_not():
    def accepted(p, q, kind, tokens):
        draws = [Draw(i + 1, Guess(token, kind, q, proposer="a")) for i, token in enumerate(tokens)]
        rejected = math.prod(1.0 - trial.chance for trial in trials(p, draws))
        return 1.0 - rejected

    for a, b in itertools.product((0.1, 0.3, 0.8), repeat=2):
        p, q = torch.tensor([a, 1 - a], dtype=torch.float64), torch.tensor([b, 1 - b], dtype=torch.float64)
        assert all(accepted(p, q, WOR, tokens) == pytest.approx(1.0) for tokens in ((0, 1), (1, 0)))
        iid = [(float(q[x] * q[y]), (x, y)) for x in (0, 1) for y in (0, 1)]
        if a != b:
            assert sum(w * accepted(p, q, DrawKind.IID, tokens) for w, tokens in iid) < 1.0 - 1e-3


# --------------------------------------------------------------------------------------------------- RSD-S


@pytest.mark.parametrize("beams", [1, 3, 6])
def test_every_level_has_so_many_sequences(beams):
    tree = grow("rsd_s", drawing(WOR, 1), Budget(60, 4, V), beams=beams)
    counts = Counter(tree.depths)
    assert counts[1] == min(beams, V)
    assert all(counts[depth] == beams for depth in (2, 3, 4))


def test_without_an_option_the_levels_share_the_nodes():
    tree = grow("rsd_s", drawing(WOR, 1), Budget(13, 4, V))
    assert Counter(tree.depths) == {0: 1, 1: 3, 2: 3, 3: 3, 4: 3}


def test_for_points_it_is_beam_search():
    tree = grow("rsd_s", likely(3), Budget(9, 3, V), beams=3)
    level, kept = [()], set()
    for _ in range(3):
        longer = [(*path, token) for path in level for token in range(V)]
        level = sorted(longer, key=lambda path: -value(path, 3))[:3]
        kept |= set(level)
    assert paths_of(tree) == kept


def pairs_without_replacement(seed):
    """Every set of two sequences of two tokens, with the probability that both are drawn without replacement."""
    p = {path: value(path, seed) for path in itertools.product(range(V), repeat=2)}
    return {
        frozenset((a, b)): p[a] * p[b] / (1 - p[a]) + p[b] * p[a] / (1 - p[b]) for a, b in itertools.combinations(p, 2)
    }


def pair_counts(seed, grown, count):
    counts: Counter = Counter()
    for number in range(count):
        tree = grown(number)
        counts[frozenset(path for path in paths_of(tree) if len(path) == 2)] += 1
    return counts


def test_sequences_are_a_sample_without_replacement_from_all_sequences():
    seed, count = 2, 1500
    exact = pairs_without_replacement(seed)
    assert sum(exact.values()) == pytest.approx(1.0)
    counts = pair_counts(seed, lambda n: grow("rsd_s", drawing(WOR, seed), Budget(4, 2, V), n, beams=2), count)
    assert set(counts) <= set(exact)
    assert chi_square_p([counts[s] for s in exact], [p * count for p in exact.values()]) > 1e-3


def test_draws_per_node_are_another_law():
    """The control of the test above: two children and one grandchild each, as a set branching would have it."""
    seed, count = 2, 600
    exact = pairs_without_replacement(seed)
    counts = pair_counts(seed, lambda n: grow("rsd_c", drawing(WOR, seed), Budget(4, 2, V), n, branching="2,1"), count)
    assert chi_square_p([counts[s] for s in exact], [p * count for p in exact.values()]) < 1e-6


def test_how_many_children_stay_does_not_depend_on_the_last_ones_token():
    """Given the first child's token, the second one is distributed as the rest of q, however many sequences survive."""
    seed, counts = 2, Counter()
    for number in range(2500):
        tree = grow("rsd_s", drawing(WOR, seed), Budget(6, 2, V), number, beams=3)
        for node in tree.children(ROOT):
            tokens = tuple(draw.guess.token for draw in tree.draws(node))
            if len(tokens) == 2 and tree.tokens[node] == int(law((), seed).argmax()):
                counts[tokens] += 1
    q = law((int(law((), seed).argmax()),), seed)
    for first in range(V):
        seconds = [counts[first, token] for token in range(V) if token != first]
        rest = [float(q[token] / (1 - q[first])) for token in range(V) if token != first]
        if sum(seconds) > 100:
            assert chi_square_p(seconds, [sum(seconds) * p for p in rest]) > 1e-3


def test_a_truncated_gumbel_is_a_gumbel_below_its_bound():
    for bound in (-1.0, 0.5, 3.0):
        for uniform in (0.01, 0.4, 0.99):
            free = 0.3 - math.log(-math.log(uniform))
            drawn = truncated(free, 0.3, bound)
            assert drawn <= min(bound, free)
            below = math.exp(-math.exp(0.3 - drawn)) / math.exp(-math.exp(0.3 - bound))
            assert below == pytest.approx(uniform)
