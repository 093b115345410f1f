"""A bias on logits is a part of the target's law: one text for every drafter, one law by every rule."""

from __future__ import annotations

import itertools
from functools import cache

import pytest
import torch
from contracts.kit import (
    PROMPT,
    Always,
    V,
    collect,
    context_for,
    converse,
    make_policy,
    make_rule,
    scripted_draft,
    scripted_target,
    speak,
    target_says,
)
from contracts.text_laws import exact_laws, law_p_values

from specchat.acceptance import ACCEPTANCE_RULES
from specchat.core.budget import Budget
from specchat.core.context import Context
from specchat.core.noise import Noise, Stream
from specchat.core.sampling import Counts, Sampling
from specchat.core.target_draw import draw_batch, draw_token
from specchat.core.tree import ROOT, TokenTree
from specchat.decoding.speculate import Speculator
from specchat.drafters import DRAFTERS
from specchat.drafters.parts import Parts
from specchat.errors import UsageError
from specchat.trees import TREE_POLICIES

BIAS = {3: -100.0, 5: 1.5, 7: -2.0, 11: 2.5}
SAMPLINGS = {
    "greedy": {},
    "greedy with penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.3},
    "truncated": {"temperature": 0.8, "top_k": 6, "top_p": 0.9, "min_p": 0.05},
}


def with_bias(logits: torch.Tensor, bias: dict[int, float] = BIAS) -> torch.Tensor:
    """Written down the long way."""
    logits = logits.clone()
    for token, amount in bias.items():
        logits[token] += amount
    return logits


@cache
def plainly(sampling: Sampling) -> list[int]:
    context = context_for(sampling)
    for _ in range(30):
        logits = with_bias(target_says()(context.history))
        law = context.law_after(TokenTree(context.root, V).freeze(), ROOT, logits)
        context.emit([law.draw(context.noise, Stream.TARGET, len(context.history))])
    return context.history[len(PROMPT) :]


@pytest.mark.parametrize(("drafter", "policy"), [*zip(DRAFTERS, itertools.cycle(TREE_POLICIES), strict=False)])
def test_speculation_never_changes_a_biased_text(drafter, policy):
    settings = SAMPLINGS[list(SAMPLINGS)[len(drafter + policy) % len(SAMPLINGS)]]
    method = {"drafter": drafter, "policy": policy, "controller": "fixed"}
    conversation = converse(scripted_target(), scripted_draft(), max_tokens=30, **method, **settings)
    said = collect(conversation.reply(PROMPT, 7, bias=BIAS))
    assert said.tokens == plainly(Sampling(**settings))
    assert 3 not in said.tokens
    assert not any(3 in round.tree.tokens[1:] for round in said.rounds), "no row is spent on a banned token"
    free = collect(conversation.reply(PROMPT, 7))
    assert free.tokens != said.tokens, "the next reply has no bias"


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_guesses_stay_right_under_a_strong_bias(temperature):
    bias = dict.fromkeys((1, 4), -100.0) | {token: (token * 7 % 5 - 2) * 2.0 for token in range(5, V)}

    def acceptance_length(**how):
        ledgers = []
        for seed in range(4):
            parts = {"drafter": "draft_model", "policy": "best_first", "controller": "fixed"}
            chat = converse(scripted_target(), scripted_draft(), max_tokens=40, temperature=temperature, **parts)
            ledgers.append(collect(chat.reply(PROMPT, seed, **how)).ledger)
        return sum(one.tokens for one in ledgers) / sum(one.rounds for one in ledgers)

    assert acceptance_length(bias=bias) > 0.95 * acceptance_length() > 3


def test_one_row_or_many_in_c_or_torch_draw_the_same_token():
    logits = torch.randn(40, 300, generator=torch.Generator().manual_seed(1)) * 2
    counts, noise = Counts([1, 2, 3], [4, 5, 5]), Noise(3)
    paths, positions = [[row % 7] for row in range(40)], list(range(6, 46))
    for settings in SAMPLINGS.values():
        own, bare = Sampling(**settings, bias=tuple(BIAS.items())), Sampling(**settings)
        many = draw_batch(logits, paths, positions, own, counts, noise)
        for row, (path, place, drawn) in enumerate(zip(paths, positions, many, strict=True)):
            one = draw_token(with_bias(logits[row]), bare, noise, place, counts, path)
            assert draw_token(logits[row], own, noise, place, counts, path) == one
            assert draw_token(logits[row].double(), own, noise, place, counts, path) == one
            assert drawn in (one, None)


def test_a_bias_on_a_token_that_the_model_lacks_is_refused():
    with pytest.raises(UsageError, match=f"no token {V}"):
        collect(converse(scripted_target()).reply(PROMPT, 7, bias={V: 1.0}))


# ------------------------------------------------------------------------------------------------------ laws

SMALL, LENGTH, BEGINNING = 5, 3, [1, 3, 1]
SMALL_BIAS = {0: 1.2, 2: -1.5}
WARM = Sampling(temperature=0.8, bias=tuple(SMALL_BIAS.items()))


def least_p(rule: str, policy: str, count: int = 300) -> float:
    method = DRAFTERS["draft_model"]
    drafter = method.load()(method.make_options({}), Parts(scripted_target(SMALL), scripted_draft(SMALL)))
    parts = (make_policy(TREE_POLICIES[policy]), make_rule(ACCEPTANCE_RULES[rule]), Always(Budget(6, 2, 3)))
    texts, accepted = [], 0
    for seed in range(count):
        text, rounds = speak(
            Speculator(scripted_target(SMALL), drafter, *parts), LENGTH, context_for(WARM, seed, SMALL, BEGINNING)
        )
        texts.append(text)
        accepted += sum(round.accepted for round in rounds)
    assert accepted > 0.2 * count
    exact = exact_laws(
        lambda text: with_bias(target_says(SMALL)(text), SMALL_BIAS), BEGINNING, LENGTH, WARM.without_bias, SMALL
    )
    return min(law_p_values(texts, exact).values())


CASES = [("follow", "best_first"), ("multi_step", "expansion"), ("recursive", "rsd_s")]


@pytest.mark.parametrize(("rule", "policy"), CASES)
def test_biased_texts_are_distributed_as_the_biased_targets(rule, policy):
    assert least_p(rule, policy) > 1e-4


@pytest.mark.parametrize(("rule", "policy"), CASES)
def test_a_bias_that_is_forgotten_behind_drafted_nodes_is_caught(rule, policy, monkeypatch):
    law_after, draw_after = Context.law_after, Context.draw_after

    def forgetful(ask):
        def asked(context, tree, node, logits):
            own = context.sampling
            context.sampling = own if node == ROOT else own.without_bias
            try:
                return ask(context, tree, node, logits)
            finally:
                context.sampling = own

        return asked

    monkeypatch.setattr(Context, "law_after", forgetful(law_after))
    monkeypatch.setattr(Context, "draw_after", forgetful(draw_after))
    assert least_p(rule, policy) < 1e-7
