"""Token recycling learns the target's top tokens after every verified node, and is better the second time."""

from __future__ import annotations

import math

import pytest
import torch
from contracts.kit import (
    PROMPT,
    Always,
    V,
    context_for,
    make_policy,
    make_rule,
    plain_text,
    scripted_target,
    speak,
    target_says,
)
from contracts.pass_requests import LookedInto
from contracts.proposing import Proposing, counting_up

from specchat.acceptance import ACCEPTANCE_RULES
from specchat.core.budget import Budget
from specchat.core.sampling import Sampling
from specchat.core.tree import ROOT, Guess, TokenTree
from specchat.decoding.speculate import Speculator
from specchat.drafters import DRAFTERS
from specchat.drafters.combine import MemberGroup
from specchat.drafters.parts import Parts
from specchat.trees import TREE_POLICIES


def recycling(**options):
    method = DRAFTERS["token_recycling"]
    return method.load()(method.make_options(options), Parts(scripted_target(V)))


def engine(drafter, policy="best_first", budget=Budget(16, 4, 8), on_layer=None):  # noqa: B008
    policy = LookedInto(make_policy(TREE_POLICIES[policy]), on_layer)
    parts = (policy, make_rule(ACCEPTANCE_RULES["follow"]), Always(budget))
    return Speculator(scripted_target(), drafter, *parts)


def proposed(drafter, token, width=8):
    tree = TokenTree(token, V)
    return [guess.token for guess in drafter.propose(tree, [ROOT], width, context_for())[0]]


class Watched(MemberGroup):
    """Another drafter's trees, watched by token recycling."""

    def __init__(self, drafter, guesses=counting_up):
        super().__init__([Proposing(guesses), drafter])

    def propose(self, *question):
        return self.members[0].propose(*question)


def one_round(drafter, on_layer=None):
    speculator, context = engine(Watched(drafter), "expansion", Budget(12, 3, 3), on_layer), context_for()
    speculator.start(context.history)
    return speculator.round(context)


def test_after_one_pass_every_token_of_the_tree_has_the_targets_top_8():
    drafter = recycling()
    round = one_round(drafter)
    for token in set(round.tree.tokens):
        after = [n for n in range(len(round.tree)) if round.tree.tokens[n] == token]
        tops = [target_says()([*PROMPT, *round.tree.path_tokens(n)]).topk(8).indices.tolist() for n in after]
        assert proposed(drafter, token) in tops
    assert any(n not in round.verdict.path for n in range(1, len(round.tree))), "rejected nodes taught something"
    for token in set(range(V)) - set(round.tree.tokens):
        assert proposed(drafter, token) == []


def test_where_a_token_occurs_twice_the_accepted_node_has_the_last_word():
    drafter, context = recycling(), context_for()
    says = target_says()
    first = int(says(context.history).argmax())

    def guesses(tree, node, width, context):
        return [Guess(first), Guess((first + 1) % V)] if node == ROOT else [Guess(first)]

    speculator = engine(Watched(drafter, guesses), "expansion", Budget(4, 2, 2))
    speculator.start(context.history)
    round = speculator.round(context)
    twins = [n for n in range(len(round.tree)) if round.tree.tokens[n] == first]
    assert len(twins) > len(round.verdict.path) >= 1
    last = round.verdict.path[-1]
    expected = says([*PROMPT, *round.tree.path_tokens(last)]).topk(8).indices.tolist()
    assert proposed(drafter, first) == expected


def test_nodes_that_were_dropped_in_the_middle_of_the_pass_teach_nothing():
    drafter = recycling()
    round = one_round(drafter, on_layer=lambda layer, hidden, nodes: [n for n in nodes if n in (0, 1)])
    known = {token for token in range(V) if proposed(drafter, token)}
    assert known == {round.tree.tokens[n] for n in round.reading.alive}
    assert len(known) < len(set(round.tree.tokens))


@pytest.mark.parametrize("policy", ["chain", "expansion", "best_first", "template"])
def test_the_same_prompt_is_accepted_more_the_second_time(policy):
    drafter = recycling()
    lengths = []
    for _ in range(2):
        text, rounds = speak(engine(drafter, policy), 60, context_for())
        lengths.append(sum(len(round.emitted) for round in rounds) / len(rounds))
        assert text == plain_text(scripted_target(), 60)
    assert lengths[1] > lengths[0]
    assert lengths[1] > 1.3


@pytest.mark.parametrize(("remember", "knows"), [(True, True), (False, False)])
def test_what_it_learnt_outlives_the_text_unless_told_otherwise(remember, knows):
    drafter = recycling(remember=remember)
    round = one_round(drafter)
    assert proposed(drafter, round.tree.tokens[ROOT])
    drafter.start([1, 2, 3])
    assert bool(proposed(drafter, round.tree.tokens[ROOT])) is knows


def test_probabilities_fall_with_the_rank_and_are_learnt():
    drafter = recycling()
    round = one_round(drafter)

    def logprobs():
        tree = TokenTree(round.tree.tokens[ROOT], V)
        return [guess.logprob for guess in drafter.propose(tree, [ROOT], 8, context_for())[0]]

    before = logprobs()
    assert before == sorted(before, reverse=True)
    assert sum(torch.tensor(before).exp()) <= 1.0
    speak(engine(drafter), 200, context_for(Sampling(temperature=0.05)))
    speak(engine(drafter), 200, context_for())
    assert logprobs()[0] != before[0]
    assert sum(torch.tensor(logprobs()).exp()) <= 1.0


@pytest.mark.parametrize("right", [0, 2])
def test_the_rank_that_is_right_becomes_the_likely_one(right):
    drafter = recycling()
    token = one_round(drafter).tree.tokens[ROOT]

    def probabilities():
        said = drafter.propose(TokenTree(token, V), [ROOT], 4, context_for())[0]
        return [math.exp(guess.logprob) for guess in said]

    before = probabilities()
    following = proposed(drafter, token)[right]
    for _ in range(100):
        drafter._count_ranks([token, following])
    after = probabilities()
    assert after[right] > before[right]
    assert after[right] > 0.7
    assert all(after[rank] < before[rank] for rank in range(4) if rank != right)


def test_k_bounds_the_successors():
    drafter = recycling(k=3)
    round = one_round(drafter)
    assert len(proposed(drafter, round.tree.tokens[ROOT])) == 3


@pytest.mark.parametrize("policy", ["chain", "expansion", "best_first", "template"])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8)], ids=["greedy", "warm"])
def test_the_text_is_the_targets_own(policy, sampling):
    drafter = recycling()
    for seed in (1, 2):
        text, rounds = speak(engine(drafter, policy), 60, context_for(sampling, seed))
        assert text == plain_text(scripted_target(), 60, sampling, seed)
    assert sum(round.accepted for round in rounds) > 0
