"""Trained networks draw from laws made as the target's is, and rules that use these write the target's law."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest
import torch
from contracts.enumerated import Enumerated, chain, levels
from contracts.kit import begin, context_for, drafter_for, make_rule, scripted_target, target_says
from contracts.text_laws import chi_square_p
from contracts.tiny_networks import tiny_resources

from specchat.acceptance import ACCEPTANCE_RULES
from specchat.bench.rule_table import ENDS
from specchat.core.budget import Budget
from specchat.core.noise import Noise
from specchat.core.sampling import Sampling, law, penalise
from specchat.core.tree import ROOT, DrawKind, Guess, TokenTree
from specchat.decoding.assemble import assemble
from specchat.decoding.combinations import losslessness
from specchat.drafters import DRAFTERS
from specchat.models.draft_heads import methods
from specchat.settings import Settings

V, LENGTH = 5, 3
KNOWN = 3
"""The tokens below can be guessed from the beginning; others once the text holds them."""
PROMPT = [0, 1, 0, 2, 1, 0]
ALL = Sampling(0.8, 4, 0.95, 0.01, 1.3, 0.2, 0.1)
FAMILIES = [*(name for name in methods("head", "denoiser") if name in DRAFTERS), "shipped_mtp"]
KINDS = (DrawKind.IID, DrawKind.WOR)


def known(name):
    """So many tokens can be guessed."""
    return V if name == "shipped_mtp" else KNOWN


@cache
def drafter(name):
    """One that knows the target's states of the prompt."""
    made = drafter_for(scripted_target(V), None, name, {})
    begin(made, PROMPT, V)
    return made


def proposed(name, path, kind, sampling=ALL, seed=7, width=3):
    context = context_for(sampling, seed, V, PROMPT)
    context.wanted, context.budget = kind, Budget(8, 3, width)
    tree, node = TokenTree(context.root, V), ROOT
    for token in path:
        node = tree.add(node, Guess(token))
    (said,) = drafter(name).propose(tree, [node], width, context)
    return said, context, tree, node


@pytest.mark.parametrize("name", FAMILIES)
def test_q_is_the_law_of_the_networks_logits_made_as_the_targets_is(name):
    for path in ((), (2,), (0, 1)):
        for sampling in (Sampling(temperature=0.7), ALL):
            said, context, _, node = proposed(name, path, DrawKind.IID, sampling)
            logits = drafter(name)._logits(node)
            assert torch.isneginf(logits[known(name) :]).all()
            expected = law(penalise(logits, sampling, context.counts, path), sampling).dense(V)
            assert len(said) == 3
            for guess in said:
                assert (guess.kind, guess.proposer) == (DrawKind.IID, name)
                torch.testing.assert_close(guess.q, expected)
                assert guess.logprob == pytest.approx(float(expected[guess.token].log()))
            assert float(expected[known(name) :].sum()) == 0.0


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
@pytest.mark.parametrize("name", FAMILIES)
def test_draws_are_distributed_as_they_say(name, kind):
    """At the root and below it; without replacement none comes twice, nor one that cannot be guessed."""
    for path in ((), (1,)):
        seen, q = Counter(), None
        _, context, tree, node = proposed(name, path, kind, Sampling(temperature=0.8), width=V)
        for seed in range(100):
            context.noise = Noise(seed)
            (said,) = drafter(name).propose(tree, [node], V, context)
            q, tokens = said[0].q, [guess.token for guess in said]
            assert sorted(tokens) == list(range(known(name))) if kind is DrawKind.WOR else len(tokens) == V
            seen[tuple(tokens[:2])] += 1
        expected = {
            (a, b): 100 * float(q[a] * q[b] / ((1 - q[a]) if kind is DrawKind.WOR else 1))
            for a in range(known(name))
            for b in range(known(name))
            if kind is DrawKind.IID or a != b
        }
        assert chi_square_p([seen[pair] for pair in expected], list(expected.values())) > 1e-4


def test_at_temperature_0_and_under_follow_they_propose_points():
    for sampling, kind in ((Sampling(), DrawKind.IID), (ALL, DrawKind.POINT)):
        said, *_ = proposed("hydra", (), kind, sampling)
        assert {guess.kind for guess in said} == {DrawKind.POINT}


@cache
def p(path):
    context = context_for(ALL, 7, V, PROMPT)
    scores = penalise(target_says(V)([*PROMPT, *path]), ALL, context.counts, path)
    return law(scores, ALL).dense(V)


@cache
def q(name, path):
    return proposed(name, path, DrawKind.IID)[0][0].q


LAWS = Enumerated(V, LENGTH, p, q)


@pytest.mark.parametrize("rule", ENDS)
def test_with_a_trained_head_texts_are_distributed_as_the_targets(rule):
    kind = make_rule(ACCEPTANCE_RULES[rule]).wanted
    for grows in (chain(2, kind, "hydra"), levels(kind, 2, 1, names=("hydra",))):
        assert LAWS.error(grows, ENDS[rule]) < 1e-12


def flattened(name, path):
    """What a drafter would say that forgets the temperature, where it draws with it."""
    sharper = q(name, path) ** 0.5
    return sharper / sharper.sum()


@pytest.mark.parametrize("rule", ENDS)
def test_a_q_of_another_temperature_is_measurably_wrong(rule):
    kind, found = make_rule(ACCEPTANCE_RULES[rule]).wanted, 0.0
    for weight, tree in LAWS.grown(levels(kind, 2, 1, names=("hydra",))):
        told = [
            (parent, draw.guess._replace(q=flattened("hydra", tuple(tree.path_tokens(parent)))))
            for parent in range(len(tree))
            for draw in tree.draws(parent)
        ]
        found += weight * LAWS.text_law(LAWS.built(told).freeze(), ENDS[rule])
    assert float((found - LAWS.wanted()).abs().max()) > 1e-3


@pytest.mark.parametrize("rule", ENDS)
def test_trained_networks_fit_with_every_rule_that_uses_q(rule):
    target = scripted_target(V)
    for name in FAMILIES:
        chosen = Settings().but({"temperature": 0.8, "rule": rule, "drafter": name, "policy": "expansion"})
        assemble(chosen, target, None, resources=tiny_resources(target))
        assert losslessness(chosen).lossless
