"""Looked-up guesses: after the longest run first, the latest occurrence first, with rates learnt from the text."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from contracts.kit import Always, V, context_for, make_policy, make_rule, scripted_target, speak
from indexes.operations import operations

from specchat.acceptance import ACCEPTANCE_RULES
from specchat.core.budget import Budget
from specchat.core.reading import HeadTensors, Reading
from specchat.core.round import Round, Verdict
from specchat.core.tree import ROOT, TokenTree
from specchat.decoding.speculate import Speculator
from specchat.drafters import DRAFTERS
from specchat.drafters.parts import Parts
from specchat.models.backends.scripted import ScriptedModel
from specchat.trees import TREE_POLICIES


def built(**options):
    method = DRAFTERS["prompt_lookup"]
    return method.load()(method.make_options(options), Parts(scripted_target(V)))


def guesses(drafter, context, width=4, tree=None, node=ROOT):
    return drafter.propose(tree or TokenTree(context.root, V), [node], width, context)[0]


def tokens(*arguments, **options):
    return [guess.token for guess in guesses(*arguments, **options)]


def observe(drafter, context, emitted):
    tree = TokenTree(context.root, V).freeze()
    reading = Reading((0,), HeadTensors(torch.zeros(1, V)), frozenset({0}))
    verdict = Verdict((), emitted[0], tree)
    drafter.observe(
        Round(context.round, len(context.history), context.history, Budget(0), tree, reading, verdict, tuple(emitted))
    )
    context.emit(emitted)


def test_the_longest_run_comes_before_shorter_ones():
    #           1 2 3 → 7,  2 3 → 8,  3 → 9: the longest run has the oldest place
    context = context_for(prompt=[1, 2, 3, 7, 5, 2, 3, 8, 6, 3, 9, 1, 2, 3])
    assert tokens(built(), context, width=3) == [7, 8, 9]
    assert tokens(built(max_ngram=2), context, width=3) == [8, 7, 9]


def test_of_equal_runs_the_latest_comes_first():
    context = context_for(prompt=[1, 7, 2, 1, 8, 2, 1, 9, 2, 1])
    assert tokens(built(), context)[:1] == [9]
    assert tokens(built(max_ngram=1), context) == [9, 8, 7]


def test_runs_shorter_than_the_shortest_allowed_are_not_looked_up():
    context = context_for(prompt=[1, 7, 2, 1])
    assert tokens(built(), context) == [7]
    assert tokens(built(min_ngram=2), context) == []


def test_a_copied_passage_continues_itself_down_the_tree():
    context = context_for(prompt=[1, 2, 3, 4, 5, 9, 1])
    drafter, tree = built(), TokenTree(1, V)
    node = ROOT
    for expected in (2, 3, 4, 5, 9):
        (guess, *_) = guesses(drafter, context, 1, tree, node)
        assert guess.token == expected
        node = tree.add(node, guess)


PASSAGE = [7 * token % 97 for token in range(60)]
"""No token twice, so every run has one continuation."""


def quoted(prompt, length):
    """The rounds in which a target that goes through the passage, and round again, writes its next 59 tokens."""
    following = dict(itertools.pairwise([*PASSAGE, PASSAGE[0]]))
    target = ScriptedModel(97, lambda text: torch.eye(97)[following[text[-1]]])
    drafter = DRAFTERS["prompt_lookup"].load()(DRAFTERS["prompt_lookup"].options(), Parts(target))
    parts = (make_policy(TREE_POLICIES["chain"]), make_rule(ACCEPTANCE_RULES["follow"]), Always(Budget(length, length)))
    text, rounds = speak(Speculator(target, drafter, *parts), 59, context_for(vocab_size=97, prompt=prompt))
    assert text == PASSAGE[1:]
    return rounds


@pytest.mark.parametrize("length", [1, 4, 9, 20])
def test_a_quotation_takes_as_many_rounds_as_it_has_tokens_by_those_of_a_round(length):
    """With copies of k tokens: each round emits k + 1."""
    assert len(quoted([*PASSAGE, PASSAGE[0]], length)) == math.ceil(59 / (length + 1))


def test_where_nothing_was_said_before_a_round_is_plain_decoding():
    rounds = quoted([PASSAGE[0]], 4)
    assert [(round.tree.drafted, len(round.emitted)) for round in rounds] == [(0, 1)] * 59


def test_rates_are_learnt_for_every_length_of_run():
    drafter, context = built(), context_for(prompt=[1, 2, 3])
    drafter.start(context.history)
    for _ in range(20):
        observe(drafter, context, [4, 5, 6, 7, 1, 2, 3])  # it always goes on as before
    (sure, *_) = guesses(drafter, context)
    assert sure.token == 4
    assert math.exp(sure.logprob) > 0.95
    other = context_for(prompt=[8, 9, 8])
    drafter.start(other.history)
    before = math.exp(guesses(drafter, other)[0].logprob)
    for wrong in range(10, 20):
        observe(drafter, other, [wrong, 8])  # a run of one token, each time followed by another
    assert math.exp(guesses(drafter, other)[0].logprob) < 0.5 * before
    drafter.start(context.history)
    assert math.exp(guesses(drafter, context)[0].logprob) > 0.95, "long runs are judged by themselves"


@pytest.mark.parametrize("period", [1, 3, 50])
def test_a_round_in_a_long_repetitive_text_costs_what_one_in_a_short_text_costs(period):
    def work(length):
        context = context_for(prompt=[token % period % V for token in range(length)])
        drafter = built()
        drafter.start(context.history)
        asking = operations(guesses, drafter, context)
        return asking + operations(observe, drafter, context, [context.history[-period]])

    assert work(8000) <= 1.1 * work(400)


def test_a_start_reads_only_what_is_new():
    history = [token % 17 for token in range(4000)]
    drafter = built()
    whole = operations(drafter.start, history)
    assert operations(drafter.start, [*history, 3, 4]) < 0.01 * whole
