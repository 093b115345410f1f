"""SpecExec finds the likeliest prefixes with bounded passes, and more nodes bring more tokens, ever more slowly."""

from __future__ import annotations

import itertools
import math

import pytest
from contracts.kit import (
    Always,
    context_for,
    make_policy,
    make_rule,
    plain_text,
    scripted_draft,
    scripted_target,
    speak,
)
from trees.laws import Costly, V, context, likely, paths_of, value

from specchat.acceptance import ACCEPTANCE_RULES
from specchat.core.budget import Budget
from specchat.core.sampling import Sampling
from specchat.decoding.speculate import Speculator
from specchat.drafters import DRAFTERS
from specchat.drafters.parts import Parts
from specchat.trees import TREE_POLICIES


def specexec(**options):
    return make_policy(TREE_POLICIES["specexec"], **options)


def best_prefixes(nodes, depth, decay, seed):
    """The N prefixes of highest decayed probability, of all there are."""
    every = [path for d in range(1, depth + 1) for path in itertools.product(range(V), repeat=d)]
    return set(sorted(every, key=lambda path: -value(path, seed) * decay ** len(path))[:nodes])


@pytest.mark.parametrize("decay", [1.0, 0.7])
@pytest.mark.parametrize("nodes", [1, 6, 20, 60])
def test_the_tree_is_the_best_prefixes_of_all_there_are(nodes, decay):
    for seed in range(4):
        tree = specexec(decay=decay).grow(likely(seed), context(), Budget(nodes, 4, V))
        assert paths_of(tree) == best_prefixes(nodes, 4, decay, seed)


def test_a_pass_expands_no_more_nodes_than_the_beam_and_no_more_passes_run_than_levels():
    drafter = Costly(likely(1))
    specexec(beams=3).grow(drafter, context(), Budget(60, 5, V))
    assert max(map(len, drafter.inner.asked)) == 3
    assert drafter.passes == 5


def test_a_node_gets_no_more_children_than_the_option_says():
    tree = specexec(children=2).grow(likely(1), context(), Budget(60, 5, V))
    assert max(len(tree.children(node)) for node in range(len(tree))) == 2


def test_prefixes_under_the_floor_are_left_out():
    tree = specexec(floor=-2.0, decay=1.0).grow(likely(), context(), Budget(64, 6, V))
    assert min(math.log(value(path)) for path in paths_of(tree)) >= -2.0
    assert 0 < tree.drafted < 64


def spoken(nodes, seed=3):
    sampling = Sampling(temperature=0.6)
    draft = DRAFTERS["draft_model"]
    drafter = draft.load()(draft.make_options({"drawing": "top"}), Parts(scripted_target(), scripted_draft()))
    parts = (specexec(), make_rule(ACCEPTANCE_RULES["follow"]), Always(Budget(nodes, 8, 16)))
    return speak(Speculator(scripted_target(), drafter, *parts), 120, context_for(sampling, seed)), sampling


def test_tokens_a_round_grow_with_the_logarithm_of_the_nodes_and_the_text_stays():
    lengths = []
    for nodes in (4, 32, 256):
        (text, rounds), sampling = spoken(nodes)
        assert text == plain_text(scripted_target(), 120, sampling, 3)
        lengths.append(120 / len(rounds))
    assert lengths[0] < lengths[1] < lengths[2], "eight times the nodes bring more tokens a round"
    assert lengths[2] - lengths[1] < 8 * (lengths[1] - lengths[0]), "and far fewer than eight times as many more"
