"""Lookahead computes n-grams in rows of the target's own pass, and so guesses what no text has shown yet."""

from __future__ import annotations

import pytest
import torch
from contracts.kit import (
    context_for,
    fixed_speculator,
    make_drafter,
    speak,
)
from contracts.models import V as NETWORK_V
from contracts.models import network_models

from specchat.core.budget import Budget
from specchat.core.tree import ROOT, TokenTree
from specchat.drafters import DRAFTERS
from specchat.drafters.choice import choose
from specchat.drafters.lookahead import LookaheadWindow
from specchat.drafters.parts import Parts
from specchat.models.backends.scripted import ScriptedModel
from specchat.settings import Settings

V = 400


class Counting(ScriptedModel):
    """A target that counts, so that its text repeats nothing. Its extra rows go on from the tokens they stand for."""

    def __init__(self) -> None:
        one_hot = torch.eye(V)
        super().__init__(V, lambda text: one_hot[(text[-1] + 1) % V])

    def embed(self, tokens):
        return torch.eye(V)[list(tokens)]

    def _extra_row(self, tree, extra_rows, index):
        return self._says([int(extra_rows[index].embedding.argmax())])


SHAPE = ("best_first", Budget(8, 4, 2))

PROMPT = [90, 60, 30, 45, 15, 1]
"""Counting from 1 on, the text comes past the other numbers."""


def lookahead(target, **options):
    method = DRAFTERS["lookahead"]
    return method.load()(method.make_options(options), Parts(target))


def said_plainly(model, text):
    """The likeliest token after a text, read without extra rows."""
    model.prefill(text[:-1])
    return int(model.read(TokenTree(text[-1], model.vocab_size).freeze()).after(ROOT).argmax())


def plainly(count):
    return [PROMPT[-1] + 1 + place for place in range(count)]


def path(window: LookaheadWindow, row):
    tokens = []
    while row is not None:
        tokens.append(window.rows()[row].token)
        row = window.rows()[row].after
    return tokens[::-1]


@pytest.mark.parametrize(("columns", "ngram"), [(3, 2), (3, 3), (3, 4)])
@pytest.mark.parametrize("choice", list(network_models())[:2])
def test_what_the_window_goes_on_from_is_what_the_target_says_after_its_tokens(choice, columns, ngram):
    """So an n-gram is the target's own text after the tokens before it, computed beside the tree."""
    factory, family = choice
    subject = factory(family, 256)
    drafter, plain = lookahead(subject.model, window=columns, ngram=ngram), subject.fresh()
    context = context_for(vocab_size=NETWORK_V)
    speculator, window = fixed_speculator(subject.model, drafter, *SHAPE), drafter._window
    speculator.start(context.history)
    for _ in range(4):
        before = list(context.history)
        expected = [said_plainly(plain, [*before, *path(window, tip)]) for tip in window.tips()]
        speculator.round(context)
        assert [(path(window, tip) or [None])[-1] for tip in window.tips()] == [
            *(expected if ngram > 2 else [None, *expected[1:]])
        ]


def test_it_is_right_about_a_text_in_which_nothing_repeats():
    text, rounds = speak(
        fixed_speculator(Counting(), lookahead(Counting()), *SHAPE), 60, context_for(vocab_size=V, prompt=PROMPT)
    )
    assert text == plainly(60)
    assert sum(round.accepted for round in rounds) > 15
    lookup = make_drafter(DRAFTERS["prompt_lookup"], vocab_size=V)
    _, rounds = speak(fixed_speculator(Counting(), lookup, *SHAPE), 28, context_for(vocab_size=V, prompt=PROMPT))
    assert sum(round.accepted for round in rounds) == 0, "control: there is nothing to look up"


def test_it_costs_rows_of_the_targets_passes_and_no_passes():
    target = Counting()
    drafter = lookahead(target, window=5, ngram=4)
    context = context_for(vocab_size=V, prompt=PROMPT)
    speculator = fixed_speculator(target, drafter, *SHAPE)
    speculator.start(context.history)
    passes, rows = target.counters.passes, target.counters.rows
    rounds = [speculator.round(context) for _ in range(12)]
    assert target.counters.passes - passes == len(rounds)
    assert drafter.passes == 0
    assert all(round.extra_rows == 4 + 5 * 2 for round in rounds)
    missing = len(PROMPT) - 1  # read with the first round
    assert target.counters.rows - rows == sum(round.rows for round in rounds) + missing


def test_a_round_planned_without_nodes_is_a_plain_pass_and_the_window_waits():
    target = Counting()
    drafter, context = lookahead(target), context_for(vocab_size=V, prompt=PROMPT)
    speculator = fixed_speculator(target, drafter, "best_first", Budget(0, 0, 0))
    speculator.start(context.history)
    before = drafter._window.rows()
    assert speculator.round(context).extra_rows == 0
    assert drafter._window.rows() == before


def test_merged_with_another_drafter_with_riders_each_gets_its_own_rows():
    target = Counting()
    drafter = Parts(target).build(choose("merge", Settings(), (("of", "jacobi+lookahead"),)))
    text, rounds = speak(fixed_speculator(target, drafter, *SHAPE), 60, context_for(vocab_size=V, prompt=PROMPT))
    assert text == plainly(60)
    names = {draw.guess.proposer for round in rounds for draw in round.tree.draws(ROOT)}
    assert any("lookahead" in name for name in names)
    assert any("jacobi" in name for name in names)
    assert sum(round.accepted for round in rounds) > 15


@pytest.mark.parametrize(("remember", "knows"), [(True, True), (False, False)])
def test_its_ngrams_outlive_the_text_unless_told_otherwise(remember, knows):
    target = Counting()
    drafter = lookahead(target, remember=remember)
    speak(fixed_speculator(target, drafter, *SHAPE), 20, context_for(vocab_size=V, prompt=PROMPT))
    root = 46
    drafter.start([1, 2, 3])
    guesses = drafter.propose(TokenTree(root, V), [ROOT], 4, context_for(vocab_size=V, prompt=[2, root]))[0]
    assert bool(guesses) is knows


def test_it_says_how_often_guesses_of_a_kind_were_right():
    target = Counting()
    drafter = lookahead(target)
    _, rounds = speak(fixed_speculator(target, drafter, *SHAPE), 120, context_for(vocab_size=V, prompt=PROMPT))
    guessed = [round for round in rounds if round.tree.drafted]
    first, last = (round.tree.draws(ROOT)[0].guess.logprob for round in (guessed[0], guessed[-1]))
    assert first < last
