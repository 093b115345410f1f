"""Drafters that read a part of a long text leave its continuation distributed as the target's under p/q rules."""

from __future__ import annotations

from functools import cache

import pytest
from contracts.kit import Always, cached_says, context_for, drafter_for, make_policy, speak
from contracts.text_laws import exact_laws, law_p_values

from specchat.acceptance import ACCEPTANCE_RULES
from specchat.core.budget import Budget
from specchat.core.sampling import Sampling
from specchat.decoding.speculate import Speculator
from specchat.models.backends.scripted import ScriptedModel, random_says
from specchat.trees import TREE_POLICIES

V = 4
LENGTH = 3
SEEDS = 80
WARM = Sampling(temperature=0.8)
PROMPT = [i * i % 7 % V for i in range(96)]
MEMORY = 64
"""Tokens of the text that the laws depend on: twice what the drafters read."""

PLAUSIBLE = 1e-4
ABSURD = 1e-7
PARTS = {
    "sparse_context": {"sparse_context.budget": 40, "sparse_context.below": "draft_model(window=32)"},
    "retrieved_context": {"retrieved_context.budget": 32, "retrieved_context.chunk": 8},
}
"""`sparse_context` is the three levels of TriForce: below it the draft model reads the first and last tokens alone."""


@cache
def says():
    return cached_says(random_says(V, 0, MEMORY, 0.9), MEMORY)


def texts_and_rounds(drafter, rule, **options):
    """The first tokens of many replies, and their rounds."""
    target, draft = ScriptedModel(V, says()), ScriptedModel(V, says())
    made = drafter_for(target, draft, drafter, PARTS[drafter])
    method = ACCEPTANCE_RULES[rule]
    judge = method.load()(method.make_options(options))
    whole = Speculator(target, made, make_policy(TREE_POLICIES["expansion"]), judge, Always(Budget(6, 2, 2)))
    texts, rounds = [], []
    for seed in range(SEEDS):
        text, done = speak(whole, LENGTH, context_for(WARM, seed, V, PROMPT))
        texts.append(text)
        rounds += done
    return texts, rounds


def worst(texts):
    return min(law_p_values(texts, exact_laws(says(), PROMPT, LENGTH, WARM, V)).values())


@pytest.mark.parametrize("rule", ["multi_step", "recursive"])
@pytest.mark.parametrize("drafter", PARTS)
def test_texts_are_distributed_as_the_targets_though_the_drafter_reads_a_part(drafter, rule):
    texts, rounds = texts_and_rounds(drafter, rule)
    assert sum(round.accepted == 0 for round in rounds) > 0.05 * len(rounds), "the part says something else"
    assert sum(round.accepted > 0 for round in rounds) > 0.2 * len(rounds)
    assert worst(texts) > PLAUSIBLE


@pytest.mark.parametrize("drafter", PARTS)
def test_a_rule_that_accepts_more_of_the_parts_draws_would_be_noticed(drafter):
    texts, _ = texts_and_rounds(drafter, "lenient", lenience=0.1)
    assert worst(texts) < ABSURD
