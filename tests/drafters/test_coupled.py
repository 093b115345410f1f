"""Coupled draws say how often the target agrees with them, not how likely the draft finds them."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
import torch
from contracts.kit import V, context_for, scripted_draft, scripted_target, target_says

from specchat.core.noise import Stream
from specchat.core.sampling import Sampling, law
from specchat.core.tree import ROOT, DrawKind, TokenTree
from specchat.drafters import DRAFTERS
from specchat.drafters.choice import choose
from specchat.drafters.parts import Parts
from specchat.drafters.point_guesses import coupled
from specchat.settings import Settings


def test_the_probability_of_coupled_draws_is_about_how_often_the_target_agrees():
    method = DRAFTERS["draft_model"]
    drafter = method.load()(method.options(), Parts(scripted_target(V), scripted_draft()))
    said, drawn_before, agreed = 0.0, 0.0, 0
    tries = 600
    for seed in range(tries):
        context = context_for(Sampling(temperature=1.0), seed, prompt=[seed % V, seed * 7 % V, 3, seed * 5 % V])
        tree = TokenTree(context.root, V)
        guess = drafter.propose(tree, [ROOT], 1, context)[0][0]
        target = context.law_after(tree, ROOT, target_says()(context.history))
        draft = context.law_after(tree, ROOT, scripted_draft()._says(context.history))
        agreed += guess.token == target.draw(context.noise, Stream.TARGET, len(context.history))
        said += math.exp(guess.logprob)
        drawn_before += float(draft.dense(V)[guess.token])
    assert abs(said / tries - agreed / tries) < 0.12
    assert drawn_before / tries < agreed / tries - 0.12, "the draft's own probability is too modest"


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0.7),
        Sampling(temperature=1.3, top_p=0.8),
        Sampling(temperature=0.5, top_k=5),
        Sampling(temperature=1.0, top_k=9, top_p=0.6, min_p=0.05),
    ],
)
def test_coupled_draws_are_in_the_order_in_which_the_target_would_draw_them(sampling):
    """Were the draft's law the target's, the first would be the target's own draw; no excluded token is among them."""
    logits = torch.randn(6, 20, generator=torch.Generator().manual_seed(4)).mul(2).sort(descending=True).values
    context, positions = context_for(sampling), range(40, 46)
    tokens, logprobs = np.tile(np.arange(20), (6, 1)), torch.log_softmax(logits, -1).double().numpy()
    ordered, chances = coupled(tokens, logprobs, positions, context)
    for row, position in enumerate(positions):
        target = law(logits[row], sampling)
        drawn = target.best(20, context.noise, Stream.TARGET, position).tolist()
        possible = [token for token, chance in zip(ordered[row], chances[row], strict=True) if chance > -math.inf]
        assert possible == [token for token in drawn if token in possible]
        assert possible[0] == drawn[0]
        hopeful = target.logprobs.max() - target.logprobs < 8
        assert len(possible) >= int(hopeful.sum())
        claimed = sum(math.exp(chance) for chance in chances[row])
        assert claimed < 1.0 if sampling.truncates(20) else math.isclose(claimed, 1.0), "excluded tokens have a share"
        assert sorted(ordered[row]) == list(range(20))


def test_where_a_rule_weighs_draws_points_do_not_depend_on_the_targets_noise():
    logits = torch.randn(3, 20, generator=torch.Generator().manual_seed(4)).mul(2).sort(descending=True).values
    tokens, logprobs = np.tile(np.arange(20), (3, 1)), torch.log_softmax(logits, -1).double().numpy()

    def said(wanted, seed):
        context = context_for(Sampling(temperature=1.0), seed)
        context.wanted = wanted
        ordered, claims = coupled(tokens, logprobs, range(3), context)
        return ordered.tolist(), claims.tolist()

    assert said(DrawKind.POINT, 1) != said(DrawKind.POINT, 2)
    for kind in (DrawKind.IID, DrawKind.WOR):
        assert said(kind, 1) == said(kind, 2) == (tokens.tolist(), logprobs.tolist())


@cache
def drawn_by_a_target_that_differs(sampling, off, rows=2000):
    """What coupled draws, with noise of a position that is so far off, claim and keep.

    (rows, 5): what the first claims, whether it was the target's; the same of the second; whether the target drew what
    truncation excludes by the draft's law.

    The target's logits are the draft's and errors of standard deviation 1.4.
    """
    generator = torch.Generator().manual_seed(11)
    draft = torch.log_softmax(torch.randn(rows, 30, generator=generator, dtype=torch.float64).mul(2.0), -1)
    target = draft + torch.randn(rows, 30, generator=generator, dtype=torch.float64).mul(1.4)
    context, positions = context_for(sampling), range(100, 100 + rows)
    likeliest = draft.sort(descending=True)
    tokens, logprobs = likeliest.indices.numpy(), likeliest.values.numpy()
    ordered, claims = coupled(tokens, logprobs, [position + off for position in positions], context)
    found = []
    for row, position in enumerate(positions):
        token = law(target[row], sampling).draw(context.noise, Stream.TARGET, position)
        excluded = sampling.truncates(30) and token not in law(draft[row], sampling).all_ids().tolist()
        by_rank = [(math.exp(claims[row, rank]), ordered[row, rank] == token) for rank in (0, 1)]
        found.append([*by_rank[0], *by_rank[1], excluded])
    return np.array(found, dtype=np.float64)


@pytest.mark.parametrize("temperature", [0.5, 0.8, 1.0])
def test_coupled_draws_claim_what_they_keep_at_every_temperature(temperature):
    first, right, second, also_right, _ = drawn_by_a_target_that_differs(Sampling(temperature=temperature), 0).T
    assert abs(first.mean() - right.mean()) < 0.05
    assert abs(second.mean() - also_right.mean()) < 0.05
    sure = first > 0.75
    assert abs(first[sure].mean() - right[sure].mean()) < 0.08
    assert abs(first[~sure].mean() - right[~sure].mean()) < 0.08


@pytest.mark.parametrize("temperature", [0.5, 0.8, 1.0])
def test_with_the_noise_of_another_position_draws_agree_less_often(temperature):
    """The control: what is gained is gained by the noise that the target uses."""
    sampling = Sampling(temperature=temperature)
    right, elsewhere = (drawn_by_a_target_that_differs(sampling, off)[:, 1].mean() for off in (0, 1))
    assert right > elsewhere + 0.05


def test_truncation_by_the_drafts_law_makes_no_guess_certain():
    """The target excludes others: a survivor that is nearly alone is right as often as it claims."""
    first, right, *_, excluded = drawn_by_a_target_that_differs(Sampling(temperature=0.5, top_p=0.7), 0).T
    assert excluded.mean() > 0.15
    assert abs(first.mean() - right.mean()) < 0.08


def test_at_temperature_0_coupled_draws_are_the_likeliest_tokens():
    guesses = []
    for drawing in ("coupled", "top"):
        parts, context = Parts(scripted_target(V), scripted_draft()), context_for()
        settings = Settings().but({"method_options": {"draft_model.drawing": drawing}})
        drafter = parts.build(choose("draft_model", settings))
        guesses.append(list(drafter.propose(TokenTree(context.root, V), [ROOT], 4, context)[0]))
    assert guesses[0] == guesses[1]
    assert len(guesses[0]) == 4
