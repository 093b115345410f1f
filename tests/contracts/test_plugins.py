"""Capabilities of the seams that no listed method uses yet, each exercised by the smallest method that needs it."""

from __future__ import annotations

import pytest
from contracts.covering import covering, named
from contracts.draw_plugins import Together
from contracts.kit import (
    Always,
    V,
    context_for,
    every,
    make_drafter,
    make_policy,
    make_rule,
    plain_text,
    scripted_draft,
    scripted_target,
    speak,
)
from contracts.models import MODELS, own_decoder, perturbed, shared_network
from contracts.models import V as NETWORK_V
from contracts.nested_engine import NestedEngine
from contracts.pass_requests import LookedInto
from contracts.proposing import Proposing, counting_up
from contracts.tree_plugins import Alternating, Pruner, Transformed, backwards, merge, only_first
from rows import each_row

from specchat.acceptance import ACCEPTANCE_RULES
from specchat.core.budget import Budget
from specchat.core.round import Reason
from specchat.core.sampling import Sampling
from specchat.core.seams import TreePolicy
from specchat.core.tree import ROOT, Guess, TokenTree
from specchat.decoding.speculate import Speculator
from specchat.drafters import DRAFTERS
from specchat.models.weights.families import FAMILIES
from specchat.trees import TREE_POLICIES

WARM = Sampling(temperature=0.8)
FOLLOW = ACCEPTANCE_RULES["follow"]


def engine(target, drafter, policy=None, budget=None, on_layer=None) -> Speculator:
    policy = policy or make_policy(TREE_POLICIES["expansion"])
    policy = policy if on_layer is None else LookedInto(policy, on_layer)
    return Speculator(target, drafter, policy, make_rule(FOLLOW), Always(budget or Budget(8, 3, 2)))


def network_plain(model, count, sampling, seed=7) -> list[int]:
    return plain_text(model, count, sampling, seed)


# --------------------------------------------------------------------------------------------- pruning


@pytest.mark.parametrize(
    ("path", "family", "sampling"),
    covering(
        named(path for path, factory in MODELS.items() if hasattr(factory, "families")),
        named(FAMILIES),
        [pytest.param(Sampling(), id="greedy"), pytest.param(WARM, id="warm")],
    ),
)
def test_pruning_in_the_middle_of_the_pass_never_changes_the_text(path, family, sampling):
    subject = MODELS[path](family, 256)
    draft = own_decoder(perturbed(shared_network(family), 0.02), 256)
    pruner = Pruner(0, lambda nodes: [node for node in nodes if node % 4 == 0])
    drafter = make_drafter(DRAFTERS["draft_model"], draft, NETWORK_V)
    context = context_for(sampling, vocab_size=NETWORK_V)
    text, rounds = speak(engine(subject.model, drafter, budget=Budget(9, 3, 3), on_layer=pruner), 16, context)
    assert text == network_plain(subject.fresh(), 16, sampling)
    assert sum(round.accepted for round in rounds) > 0, "otherwise nothing but plain decoding was tried"
    kept_out = 0
    for round in rounds:
        tree, reading = round.tree, round.reading
        gone = {node for node in range(1, len(tree)) if any(n % 4 == 0 for n in tree.path(node))}
        assert set(reading.pruned) == gone
        assert reading.alive == set(range(len(tree))) - gone
        assert all(round.verdict.reasons[node] is Reason.PRUNED for node in gone)
        assert not gone & set(round.verdict.path)
        last = ([ROOT, *round.verdict.path])[-1]
        kept_out += tree.child(last, round.verdict.bonus) in gone
    assert kept_out > 0, "a pruned node would have been accepted; its token came as the bonus"


def test_pruning_everything_is_plain_decoding():
    target, context = scripted_target(), context_for(WARM)
    pruner = Pruner(0, lambda nodes: nodes)
    text, rounds = speak(
        engine(target, make_drafter(DRAFTERS["draft_model"], scripted_draft()), on_layer=pruner), 15, context
    )
    assert text == plain_text(scripted_target(), 15, WARM)
    assert len(rounds) == 15


# ----------------------------------------------------------------------------------------- nested engine


def inner_engine(draft):
    return engine(draft, make_drafter(DRAFTERS["prompt_lookup"]), budget=Budget(4, 2, 2))


@pytest.mark.parametrize("sampling", [Sampling(), WARM], ids=["greedy", "warm"])
@pytest.mark.parametrize("policy", every(TREE_POLICIES))
def test_an_engine_can_be_the_drafter_of_a_bigger_one(policy, sampling):
    nested = NestedEngine(inner_engine, scripted_draft())
    context = context_for(sampling)
    text, rounds = speak(engine(scripted_target(), nested, make_policy(policy), Budget(4, 4, 1)), 30, context)
    assert text == plain_text(scripted_target(), 30, sampling)
    assert sum(round.accepted for round in rounds) > 0
    assert sum(round.draft_passes for round in rounds) > 0


def test_a_nested_engine_writes_with_noise_of_its_own():
    """With the outer noise it would draw what its own model draws at the target's noise; the child's is different."""

    def drafts(label):
        context = context_for(WARM)
        speculator = engine(scripted_target(), NestedEngine(inner_engine, scripted_draft(), label=label))
        return [round.tree.tokens[1:] for round in speak(speculator, 20, context)[1]]

    assert drafts("one") == drafts("one")
    assert drafts("one") != drafts("two")
    assert drafts("one") != drafts(None)


def test_hierarchies_nest_as_deep_as_one_likes():
    def middle(draft):
        return engine(draft, NestedEngine(inner_engine, scripted_draft(memory=1), ahead=2, label="inner"))

    context = context_for(WARM)
    text, _ = speak(engine(scripted_target(), NestedEngine(middle, scripted_draft())), 20, context)
    assert text == plain_text(scripted_target(), 20, WARM)


# --------------------------------------------------------------------------------------------- transforms


@each_row(
    ("method", "transform", "sampling"),
    covering(
        every(DRAFTERS),
        [pytest.param(backwards(V), id="renumbered"), pytest.param(only_first(V), id="pruned")],
        [pytest.param(Sampling(), id="greedy"), pytest.param(WARM, id="warm")],
    ),
)
def test_a_transform_of_the_tree_never_changes_the_text(method, transform, sampling):
    policy = Transformed(make_policy(TREE_POLICIES["expansion"], widths="3,2,1"), transform)
    context = context_for(sampling)
    drafter = make_drafter(method, scripted_draft())
    text, _ = speak(engine(scripted_target(), drafter, policy, Budget(16, 3, 3)), 16, context)
    assert text == plain_text(scripted_target(), 16, sampling)


def test_merged_trees_share_prefixes_and_keep_both_draws():
    first, second = TokenTree(3, V), TokenTree(3, V)
    first.add(first.add(ROOT, Guess(4, proposer="a")), Guess(5, proposer="a"))
    below = second.add(ROOT, Guess(4, proposer="b"))
    second.add(below, Guess(6, proposer="b"))
    second.add(ROOT, Guess(7, proposer="b"))
    merged = merge(first.freeze(), second.freeze(), V)
    assert sorted(tuple(merged.path_tokens(n)) for n in range(1, len(merged))) == [(4,), (4, 5), (4, 6), (7,)]
    shared = merged.child(ROOT, 4)
    assert [d.guess.proposer for d in merged.draws(ROOT) if d.child == shared] == ["a", "b"]
    assert merged.frozen


class Merging(TreePolicy):
    """Two drafters, a tree each, merged as tries."""

    def __init__(self, policy, first, second):
        self._policy, self._first, self._second = policy, first, second

    def grow(self, drafter, context, budget):
        trees = [self._policy.grow(one, context, budget) for one in (self._first, self._second)]
        return merge(*trees, context.vocab_size)


@pytest.mark.parametrize("sampling", [Sampling(), WARM], ids=["greedy", "warm"])
def test_two_drafters_whose_trees_are_merged_learn_as_if_alone(sampling):
    drafters = [make_drafter(DRAFTERS["draft_model"], scripted_draft()), make_drafter(DRAFTERS["prompt_lookup"])]
    policy = Merging(make_policy(TREE_POLICIES["expansion"]), *drafters)
    context = context_for(sampling)
    text, rounds = speak(engine(scripted_target(), Together(*drafters), policy), 80, context)
    assert text == plain_text(scripted_target(), 80, sampling)
    by_two = [r for r in rounds if any(len(r.tree.draws(n)) > len(r.tree.children(n)) for n in range(len(r.tree)))]
    assert by_two, "some node was proposed by both"


# --------------------------------------------------------------------------------------------- controllers


def test_a_controller_may_change_the_budget_every_round():
    controller = Alternating(Budget(0), Budget(8, 4, 2), Budget(1, 1, 1))
    context = context_for(WARM)
    speculator = engine(scripted_target(), make_drafter(DRAFTERS["draft_model"], scripted_draft()))
    speculator.controller = controller
    text, rounds = speak(speculator, 30, context)
    assert text == plain_text(scripted_target(), 30, WARM)
    assert [round.tree.drafted for round in rounds[:3]] == [0, rounds[1].tree.drafted, 1]
    assert controller.seen == [round.accepted for round in rounds]


def test_a_hand_made_drafter_is_asked_level_by_level():
    drafter = Proposing(counting_up)
    make_policy(TREE_POLICIES["expansion"], widths="2,1").grow(drafter, context_for(), Budget(4, 2, 2))
    assert drafter.asked == [(ROOT,), (1, 2)]
