"""Merged drafters share one tree: no token twice, every proposer named, trust learnt, the text the target's own."""

from __future__ import annotations

import math

import pytest
import torch
from contracts.kit import (
    PROMPT,
    Always,
    MadeOf,
    V,
    context_for,
    fixed_speculator,
    make_policy,
    make_rule,
    plain_text,
    scripted_draft,
    scripted_target,
    speak,
    target_says,
)
from contracts.proposing import Proposing

from specchat.acceptance import ACCEPTANCE_RULES
from specchat.core.budget import Budget
from specchat.core.reading import HeadTensors, Reading
from specchat.core.round import Round, Verdict
from specchat.core.sampling import Sampling
from specchat.core.tree import ROOT, DrawKind, Guess, TokenTree
from specchat.decoding.speculate import Speculator
from specchat.drafters.choice import choose
from specchat.drafters.merge import Merge
from specchat.drafters.options import MergeOptions
from specchat.drafters.parts import Parts
from specchat.settings import Settings
from specchat.trees import TREE_POLICIES


def build(name, draft=None, **options):
    settings = Settings().but(
        {"method_options": {key if "." in key else f"{name}.{key}": options[key] for key in options}}
    )
    return Parts(scripted_target(V), draft).build(choose(name, settings))


def of(*members):
    """A merge of drafters made by hand."""
    return Merge(MergeOptions("none"), MadeOf(scripted_target(V), drafters=members))


def saying(name, *pairs):
    """A drafter that says the same about every node: (token, probability)…"""
    guesses = [Guess(token, logprob=math.log(p), proposer=name) for token, p in pairs]
    return Proposing(lambda tree, node, width, context: guesses[:width])


def ask(drafter, width=8, context=None, wanted=DrawKind.POINT):
    context = context or context_for()
    context.wanted = wanted
    return list(drafter.propose(TokenTree(context.root, V), [ROOT], width, context)[0])


def play(drafter, tree, emitted, **reading):
    """A round over this tree in which the target said `emitted`."""
    path = tree.follow(emitted)
    read = Reading(
        tuple(range(len(tree))), HeadTensors(torch.zeros(len(tree), V)), frozenset(range(len(tree))), **reading
    )
    verdict = Verdict(path, emitted[len(path)] if len(path) < len(emitted) else None, tree)
    drafter.observe(Round(0, len(PROMPT), PROMPT, Budget(8, 3, 2), tree, read, verdict, tuple(emitted)))


def test_one_token_is_one_guess_with_all_its_proposers():
    guesses = ask(of(saying("a", (4, 0.5), (5, 0.2)), saying("b", (5, 0.6), (6, 0.1))))
    assert [(guess.token, guess.proposer) for guess in guesses] == [(5, "a+b"), (4, "a"), (6, "b")]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_model_is_asked_only_where_no_other_member_is_sure(order):
    asked = []

    def looked_up(tree, node, width, context):
        return [Guess(4, logprob=math.log(0.95 if node == ROOT else 0.5), proposer="suffix")]

    def drafted(tree, node, width, context):
        asked.append(node)
        return [Guess(5, logprob=math.log(0.6), proposer="draft_model")]

    members = [Proposing(looked_up), Proposing(drafted)]
    merged = of(*(members[index] for index in order))
    merged._models = {order.index(1)}
    tree = TokenTree(3, V)
    child = tree.add(ROOT, Guess(4))
    said = merged.propose(tree, [ROOT, child], 2, context_for())
    assert asked == [child]
    assert [[guess.token for guess in guesses] for guesses in said] == [[4], [5, 4]]


def test_a_draft_model_counts_as_a_model_and_a_looked_up_guess_saves_its_pass():
    merged = build("merge", scripted_draft(), of="draft_model,prompt_lookup", sure=0.0)
    again = context_for(prompt=[*PROMPT, *PROMPT])
    assert ask(merged, context=again)
    assert merged.passes == 0
    assert ask(merged, context=context_for(prompt=range(5, 15)))
    assert merged.passes > 0


def test_lookups_go_on_where_passes_are_not_allowed():
    target, draft = scripted_target(), scripted_draft()
    merged = build("merge", draft, of="draft_model,prompt_lookup")
    parts = make_policy(TREE_POLICIES["chain"]), make_rule(ACCEPTANCE_RULES["follow"])
    context = context_for(prompt=PROMPT * 3)
    speculator = Speculator(target, merged, *parts, Always(Budget(4, 4, 2, passes=False)))
    emitted, rounds = speak(speculator, 30, context)
    assert emitted == context.history[3 * len(PROMPT) :][:30]
    assert all(round.draft_passes == 0 for round in rounds)
    assert any(round.tree.drafted for round in rounds)


def test_the_merged_tree_is_smaller_than_its_parts_together_and_holds_them_all():
    parts = [saying("a", (4, 0.5), (5, 0.2)), saying("b", (5, 0.6), (6, 0.1))]
    grow = make_policy(TREE_POLICIES["expansion"], widths="8,8,8").grow

    def paths(drafter):
        tree = grow(drafter, context_for(), Budget(500, 3, 8))
        return {tuple(tree.path_tokens(node)) for node in range(1, len(tree))}

    both = paths(of(*parts))
    alone = [paths(part) for part in parts]
    assert alone[0] | alone[1] < both, "and combinations of the two below each other"
    assert len(alone[0]) == len(alone[1]) == 14
    first = [{path for path in tree if len(path) == 1} for tree in (both, *alone)]
    assert len(first[0]) < len(first[1]) + len(first[2])


def test_the_width_bounds_the_tokens_and_the_most_trusted_stay():
    guesses = ask(of(saying("a", (1, 0.3), (2, 0.2)), saying("b", (3, 0.4), (4, 0.1))), width=2)
    assert [guess.token for guess in guesses] == [3, 1]


def test_trust_is_learnt_per_proposer_and_sureness_also_from_guesses_without_a_place():
    boaster, modest = saying("boaster", (1, 0.9)), saying("modest", (2, 0.3))
    merged = of(boaster, modest)
    assert [guess.token for guess in ask(merged)] == [1, 2]
    for _ in range(30):
        ask(merged)
        play(merged, TokenTree(PROMPT[-1], V).freeze(), [2])  # nothing got a place in this tree
    learnt = ask(merged)
    assert [guess.token for guess in learnt] == [2, 1]
    assert math.exp(learnt[0].logprob) > 0.7
    assert math.exp(learnt[1].logprob) < 0.3


def test_nearly_certain_guesses_are_trusted_apart_from_likely_ones():
    claimed = [0.9]
    merged = of(Proposing(lambda *about: [Guess(1, logprob=math.log(claimed[0]), proposer="a")]))
    for _ in range(40):
        ask(merged)
        play(merged, TokenTree(PROMPT[-1], V).freeze(), [1])
    assert math.exp(ask(merged)[0].logprob) > 0.97
    claimed[0] = 0.6
    assert math.exp(ask(merged)[0].logprob) == pytest.approx(0.6), "what was learnt of 0.9 says nothing of 0.6"


def test_trust_is_learnt_only_where_the_text_shows_what_followed():
    merged = of(saying("a", (1, 0.5), (2, 0.25)))
    tree = TokenTree(PROMPT[-1], V)
    child, other = tree.add(ROOT, Guess(1)), tree.add(ROOT, Guess(2))
    for _ in range(200):
        merged.propose(tree, [ROOT, child, other], 2, context_for())
        play(merged, tree, [1, 1])
    # The node of token 2 was never reached: had it counted, token 1 would have seemed right less often than always.
    assert math.exp(ask(merged)[0].logprob) > 0.97
    assert math.exp(ask(merged)[1].logprob) < 0.02


def test_an_untested_probability_stays_as_claimed():
    assert [round(math.exp(guess.logprob), 6) for guess in ask(of(saying("a", (1, 0.5), (2, 0.2))))] == [0.5, 0.2]


# ---------------------------------------------------------------------------------------- sampled draws


def drawing(name, tokens, kind=DrawKind.IID):
    q = torch.full((V,), 1 / V, dtype=torch.float64)
    guesses = [Guess(token, kind, q, math.log(1 / V), name) for token in tokens]
    return Proposing(lambda tree, node, width, context: guesses[:width])


def test_sampled_draws_come_first_in_their_order_and_are_not_chosen_by_token():
    for tokens in ((9, 9, 1), (1, 9, 3), (5, 1, 1)):
        guesses = ask(of(saying("a", (1, 0.9), (2, 0.5), (3, 0.4)), drawing("d", tokens)), 4, wanted=DrawKind.IID)
        assert [guess.token for guess in guesses if guess.kind is DrawKind.IID] == list(tokens[:2])
        assert [guess.kind for guess in guesses[:2]] == [DrawKind.IID] * 2
        assert [guess.token for guess in guesses[2:]] == [1, 2]


def test_draws_alone_get_the_whole_width():
    assert len(ask(of(drawing("d", (9, 9, 1, 2))), 4, wanted=DrawKind.IID)) == 4


@pytest.mark.parametrize("named", ["suffix,token_recycling", "draft_model,suffix", "prompt_lookup,draft_model"])
@pytest.mark.parametrize("policy", ["chain", "expansion", "best_first", "template"])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8)], ids=["greedy", "warm"])
def test_the_text_is_the_targets_own(named, policy, sampling):
    merged, target = build("merge", scripted_draft(), of=named), scripted_target()
    text, rounds = speak(fixed_speculator(target, merged, policy, Budget(12, 4, 4)), 80, context_for(sampling))
    assert text == plain_text(scripted_target(), 80, sampling)
    assert sum(round.accepted for round in rounds) > 0


def test_a_draft_model_reads_the_nodes_that_others_proposed_and_stays_in_step():
    """The stranger proposes what the target says; below it the draft model must know where it is."""

    def right(tree, node, width, context):
        return [Guess(int(target_says()([*context.history, *tree.path_tokens(node)]).argmax()), proposer="stranger")]

    merged = of(build("draft_model", scripted_draft()), Proposing(right))
    _, rounds = speak(fixed_speculator(scripted_target(), merged, "expansion", Budget(12, 3, 3)), 40, context_for())
    assert all(round.accepted >= 2 for round in rounds)
    last, context = rounds[-1], context_for()
    alone = build("draft_model", scripted_draft())
    context.history = list(last.history[: last.start])
    alone.start(context.history)
    for node in range(len(last.tree)):
        by_draft = {d.guess.token for d in last.tree.draws(node) if "draft_model" in d.guess.proposer}
        fresh = alone.propose(last.tree, [node], 3, context)[0]
        assert by_draft <= {guess.token for guess in fresh}
