"""Drafting stops where the draft is unsure, and the path threshold follows what stood."""

from __future__ import annotations

import math

import pytest
import torch
from contracts.kit import Always, context_for, make_policy, make_rule, plain_text, scripted_target, speak
from contracts.proposing import Proposing
from trees.laws import IID, V, context, likely, paths_of, value

from specchat.acceptance import ACCEPTANCE_RULES
from specchat.core.budget import Budget
from specchat.core.tree import DrawKind, Guess
from specchat.decoding.speculate import Speculator
from specchat.trees import TREE_POLICIES


def confidence(**options):
    return make_policy(TREE_POLICIES["confidence"], **options)


def fading(tree, node, width, context):
    """Sure at first, and ever less so: 0.9, 0.8, 0.7, …"""
    sure = 0.9 - 0.1 * tree.depths[node]
    return [Guess(1, logprob=math.log(sure)), Guess(2, logprob=math.log(0.05))][:width]


@pytest.mark.parametrize(("fallback", "length"), [(0.95, 0), (0.85, 1), (0.65, 3), (0.45, 5)])
def test_the_window_ends_at_the_first_node_that_is_less_sure_than_the_fallback(fallback, length):
    tree = confidence(fallback=fallback, alpha=0.0).grow(Proposing(fading), context(), Budget(64, 8, 1))
    assert tree.drafted == max(tree.depths) == length


@pytest.mark.parametrize("alpha", [0.05, 0.2, 0.5])
def test_no_path_is_less_sure_than_alpha_and_none_that_is_surer_is_missing(alpha):
    tree = confidence(fallback=0.0, alpha=alpha).grow(likely(1), context(), Budget(500, 3, V))
    every = {(a,) for a in range(V)} | {(a, b) for a in range(V) for b in range(V)}
    every |= {(*pair, c) for pair in every if len(pair) == 2 for c in range(V)}
    assert paths_of(tree) == {path for path in every if value(path, 1) >= alpha}


def test_of_draws_the_law_decides_and_not_the_token():
    sure, flat = torch.tensor([0.9, 0.05, 0.05, 0.0]), torch.tensor([0.3, 0.3, 0.2, 0.2])

    def drawing(q, token):
        return Proposing(lambda tree, node, width, context: [Guess(token, IID, q, math.log(q[token]))])

    for token in (0, 1):
        assert confidence(fallback=0.5, alpha=0.0).grow(drawing(sure, token), context(), Budget(1, 1, 1)).drafted == 1
        assert confidence(fallback=0.5, alpha=0.0).grow(drawing(flat, token), context(), Budget(1, 1, 1)).drafted == 0


def spoken(policy, right, rounds=12, depth=3):
    """Rounds in which the drafter is always right, or always wrong; and the text with that of plain decoding."""
    told = plain_text(scripted_target(), 80)

    def guess(tree, node, width, context):
        at = len(context.history) - context.prompt_tokens + tree.depths[node]
        return [Guess(told[at] if right else (told[at] + 1) % context.vocab_size, logprob=math.log(0.95))]

    parts = (Proposing(guess), policy, make_rule(ACCEPTANCE_RULES["follow"]), Always(Budget(depth, depth, 1)))
    here = context_for()
    text, done = speak(Speculator(scripted_target(), *parts), rounds, here)
    assert text == told[: len(text)]
    return done


def test_alpha_halves_while_whole_paths_stand():
    policy = confidence(alpha=0.4)
    done = spoken(policy, right=True, rounds=8)
    assert all(round.accepted == 3 for round in done)
    assert policy.alpha == pytest.approx(0.4 * 0.5 ** len(done))


def test_alpha_rises_to_its_bound_while_nothing_stands():
    policy = confidence(alpha=0.4)
    done = spoken(policy, right=False, rounds=1)
    assert len(done) == 1
    assert policy.alpha == pytest.approx(0.8)
    spoken(policy, right=False, rounds=1)
    assert policy.alpha == 0.9


def test_partly_wrong_rounds_raise_alpha_by_the_share_that_was_wrong():
    policy = confidence(alpha=0.1)
    round = spoken(confidence(), right=True, rounds=1)[0]
    cut = round.verdict.cut(1)
    policy.observe(type(round)(**{**vars(round), "verdict": cut}))
    assert policy.alpha == pytest.approx(0.1 / 0.5 ** (2 / 3))


def test_a_plain_round_says_nothing_about_alpha():
    policy = confidence(alpha=0.4)
    done = spoken(policy, right=True, depth=0)
    assert done
    assert policy.alpha == 0.4


def test_a_fixed_alpha_stays():
    policy = confidence(alpha=0.4, adapt=False)
    spoken(policy, right=False)
    assert policy.alpha == 0.4


def test_an_alpha_that_let_nothing_through_falls_again():
    policy = confidence(alpha=0.9)
    unsure = Proposing(lambda tree, node, width, context: [Guess(1, DrawKind.POINT, logprob=math.log(0.6))])
    parts = (unsure, policy, make_rule(ACCEPTANCE_RULES["follow"]), Always(Budget(4, 2, 1)))
    _, rounds = speak(Speculator(scripted_target(), *parts), 2, context_for())
    assert rounds[0].tree.drafted == 0
    assert rounds[1].tree.drafted > 0
