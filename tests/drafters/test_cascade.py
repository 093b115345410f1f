"""A cascade takes one member's guesses per node, those of the first that has any; later members are not asked."""

from __future__ import annotations

import math

import pytest
from contracts.kit import (
    PROMPT,
    MadeOf,
    V,
    context_for,
    fixed_speculator,
    plain_text,
    scripted_draft,
    scripted_target,
    speak,
)
from contracts.proposing import Proposing

from specchat.core.budget import Budget
from specchat.core.sampling import Sampling
from specchat.core.tree import ROOT, DrawKind, Guess, TokenTree
from specchat.drafters.cascade import Cascade
from specchat.drafters.choice import choose
from specchat.drafters.options import CascadeOptions
from specchat.drafters.parts import Parts
from specchat.settings import Settings


def of(*members, least=0.0):
    """A cascade of drafters made by hand."""
    return Cascade(CascadeOptions("none", least), MadeOf(scripted_target(V), drafters=members))


def build(text, **options):
    settings = Settings().but({"method_options": {"cascade.of": text, **options}})
    return Parts(scripted_target(V), scripted_draft(V)).build(choose("cascade", settings))


def saying(name, said, kind=DrawKind.POINT):
    """A drafter with these guesses, (token, probability)…, for each token of a node; silent about all others."""

    def guesses(tree, node, width, context):
        return [Guess(token, kind, None, math.log(p), name) for token, p in said.get(tree.tokens[node], ())][:width]

    return Proposing(guesses)


def two_nodes():
    tree = TokenTree(3, V)
    return tree, [ROOT, tree.add(ROOT, Guess(4))]


def test_the_first_member_with_a_guess_is_the_only_one_asked_about_a_node():
    first, second = saying("a", {3: [(5, 0.1)]}), saying("b", {3: [(6, 0.9)], 4: [(7, 0.9)]})
    third = saying("c", {3: [(8, 0.9)], 4: [(9, 0.9)]})
    tree, frontier = two_nodes()
    said = of(first, second, third).propose(tree, frontier, 2, context_for())
    assert [[(guess.token, guess.proposer) for guess in guesses] for guesses in said] == [[(5, "a")], [(7, "b")]]
    assert (first.asked, second.asked, third.asked) == ([(0, 1)], [(1,)], [])


def test_points_below_the_least_probability_leave_the_node_to_the_next():
    first, second = saying("a", {3: [(5, 0.2)], 4: [(5, 0.5)]}), saying("b", {3: [(6, 0.1)], 4: [(6, 0.9)]})
    third = saying("c", {3: [(7, 0.4)], 4: [(7, 0.9)]})
    tree, frontier = two_nodes()
    said = of(first, second, third, least=0.3).propose(tree, frontier, 2, context_for())
    assert [[guess.token for guess in guesses] for guesses in said] == [[7], [5]]


def test_the_last_member_is_heard_however_unlikely_its_points():
    first, last = saying("a", {3: [(5, 0.2)], 4: [(5, 0.5)]}), saying("b", {3: [(6, 0.1)], 4: [(6, 0.9)]})
    tree, frontier = two_nodes()
    said = of(first, last, least=0.3).propose(tree, frontier, 2, context_for())
    assert [[guess.token for guess in guesses] for guesses in said] == [[6], [5]]


def test_sampled_draws_are_kept_however_unlikely_their_tokens():
    drawn = saying("a", {3: [(5, 0.001)]}, DrawKind.IID)
    said = of(drawn, saying("b", {3: [(6, 0.9)]}), least=0.5).propose(TokenTree(3, V), [ROOT], 2, context_for())
    assert [guess.token for guess in said[0]] == [5]


def test_a_draft_model_runs_only_where_the_lookups_before_it_found_nothing():
    cascade = build("prompt_lookup+draft_model")
    again, fresh = context_for(prompt=[*PROMPT, *PROMPT]), context_for(prompt=range(5, 15))
    assert cascade.propose(TokenTree(again.root, V), [ROOT], 2, again)[0]
    assert cascade.passes == 0
    assert cascade.propose(TokenTree(fresh.root, V), [ROOT], 2, fresh)[0][0].proposer == "draft_model"
    assert cascade.passes > 0


@pytest.mark.parametrize("policy", ["chain", "best_first"])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8)], ids=["greedy", "warm"])
def test_the_text_is_the_targets_own_and_both_members_draft(policy, sampling):
    cascade = build("suffix+draft_model", **{"cascade.least": 0.4})
    text, rounds = speak(
        fixed_speculator(scripted_target(), cascade, policy, Budget(12, 4, 3)), 80, context_for(sampling)
    )
    assert text == plain_text(scripted_target(), 80, sampling)
    named = {d.guess.proposer for r in rounds for node in range(len(r.tree)) for d in r.tree.draws(node)}
    assert named == {"suffix", "draft_model"}
    nodes = [r.tree.draws(node) for r in rounds for node in range(len(r.tree)) if r.tree.draws(node)]
    assert all(len({d.guess.proposer for d in draws}) == 1 for draws in nodes), "no two members beside each other"
