"""Jacobi decoding: every pass replaces the guessed places by what the target says after them."""

from __future__ import annotations

import pytest
from contracts.kit import context_for, fixed_speculator, make_policy, make_rule, plain_text, speak
from contracts.models import V as NETWORK_V
from contracts.models import network_models
from contracts.pass_requests import requested

from specchat.acceptance import ACCEPTANCE_RULES
from specchat.core.budget import Budget
from specchat.core.round import Round
from specchat.core.sampling import Sampling
from specchat.core.tree import ROOT, TokenTree
from specchat.drafters import DRAFTERS
from specchat.drafters.parts import Parts
from specchat.models.backends.scripted import ScriptedModel, random_says
from specchat.trees import TREE_POLICIES

V = 60


def by_place() -> ScriptedModel:
    """A target whose next token depends on its place in the text alone: all places can be computed at once."""
    says = random_says(V, memory=1)
    return ScriptedModel(V, lambda text: says([len(text)]))


def jacobi(target, **options):
    method = DRAFTERS["jacobi"]
    return method.load()(method.make_options(options), Parts(target))


SAMPLINGS = [
    Sampling(),
    Sampling(temperature=0.8),
    Sampling(repetition_penalty=1.5),
    Sampling(temperature=0.8, repetition_penalty=1.5, frequency_penalty=0.5),
]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "warm", "greedy penalised", "warm penalised"])
def test_where_places_do_not_depend_on_each_other_one_pass_is_enough_for_all(sampling):
    """Above temperature 0 too, since guesses are drawn with the target's own noise."""
    target = by_place()
    context = context_for(sampling, vocab_size=V)
    text, rounds = speak(fixed_speculator(target, jacobi(target, window=8), "chain", Budget(4, 4, 1)), 41, context)
    assert text == plain_text(by_place(), 41, sampling)
    assert [len(round.emitted) for round in rounds] == [1] + [5] * 8


def test_the_line_costs_as_many_rows_as_its_option_says_while_the_budget_is_smaller():
    for nodes in (1, 2, 4):
        target = by_place()
        drafter = jacobi(target, window=6)
        _, rounds = speak(
            fixed_speculator(target, drafter, "chain", Budget(nodes, nodes, 1)), 30, context_for(vocab_size=V)
        )
        assert {round.rows for round in rounds} == {7}
        assert drafter.passes == 0


@pytest.mark.parametrize("nodes", [1, 2, 4])
@pytest.mark.parametrize("choice", list(network_models())[:2])
def test_the_next_line_is_what_the_target_says_after_this_one(choice, nodes):
    """Read by nodes and by extra rows alike: the greedy token after each of the line's own tokens."""
    factory, family = choice
    subject = factory(family, 256)
    drafter, plain = jacobi(subject.model, window=4), subject.fresh()
    context = context_for(vocab_size=NETWORK_V)
    model = subject.model
    drafter.start(context.history)
    for _ in range(5):
        tree = make_policy(TREE_POLICIES["chain"]).grow(drafter, context, Budget(nodes, nodes, 1))
        line = [candidates[0] for candidates in drafter._line]
        line += [context.root] * max(4 - len(line), int(len(drafter._nodes(tree)) == len(line)))
        model.prefill(context.history[:-1])
        before = list(context.history)
        extra_rows = drafter.extra_rows(tree)
        reading = model.read(tree, request=requested(extra_rows))
        verdict = make_rule(ACCEPTANCE_RULES["follow"]).judge(tree, reading, context)
        emitted = verdict.emitted
        round = _round(context, tree, reading, verdict, emitted, len(extra_rows))
        drafter.observe(round)
        model.keep(verdict.path)
        context.emit(emitted)
        expected = []
        for place in range(len(emitted), len(line) + 1):
            text = [*before, *line[:place]]
            plain.prefill(text[:-1])
            expected.append(int(plain.read(TokenTree(text[-1], NETWORK_V).freeze()).after(ROOT).argmax()))
        found = drafter._said
        assert ([] if found is None else found[0][:, 0].tolist()) == expected


def _round(context, tree, reading, verdict, emitted, extra_rows):
    return Round(
        context.round,
        len(context.history),
        context.history,
        Budget(4, 4, 1),
        tree,
        reading,
        verdict,
        tuple(emitted),
        extra_rows=extra_rows,
    )


def test_several_candidates_for_a_place_become_siblings():
    target = by_place()
    _, rounds = speak(
        fixed_speculator(target, jacobi(target), "expansion", Budget(8, 2, 3)), 20, context_for(vocab_size=V)
    )
    assert max(len(round.tree.children(ROOT)) for round in rounds) == 3


def test_a_text_whose_every_token_depends_on_the_one_before_is_no_worse_than_plain():
    says = random_says(V, memory=1)
    target = ScriptedModel(V, says)
    text, rounds = speak(
        fixed_speculator(target, jacobi(target), "chain", Budget(4, 4, 1)), 40, context_for(vocab_size=V)
    )
    assert text == plain_text(ScriptedModel(V, says), 40)
    assert len(rounds) <= 40
