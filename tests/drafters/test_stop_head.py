"""A draft model's stopping head learns from rounds where a guess will be refused, which the draft cannot tell."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from contracts.kit import (
    V,
    context_for,
    fixed_speculator,
    make_drafter,
    plain_text,
    scripted_target,
    speak,
    target_says,
)

from specchat.core.budget import Budget
from specchat.core.sampling import Sampling
from specchat.core.tree import ROOT, Guess, TokenTree
from specchat.drafters import DRAFTERS
from specchat.drafters.draft_model import DraftModel
from specchat.drafters.stop_head import StopHead
from specchat.models.backends.scripted import ScriptedModel

WARM = Sampling(temperature=0.9)
HIDES = V - 1
"""A token whose logit is far too low to be drawn; how low it is tells how much the draft knows."""


def unsure_draft() -> ScriptedModel:
    """As sure of itself where it is wrong as where it is right."""
    target = target_says()

    def says(text):
        logits = target(text).clone()
        lost = (sum(text[-2:]) * 7 + text[-1]) % 5 < 2
        logits = logits.roll(3) if lost else logits
        logits[HIDES] = logits.max() - (14.0 if lost else 18.0) + 2.0 * torch.sin(torch.tensor(float(text[-1])))
        return logits

    return ScriptedModel(V, says)


def judged(drafter, depth, seeds, tokens=60):
    """Accepted and drafted tokens, and passes of the target, in replies from these seeds."""
    accepted = drafted = rounds = 0
    for seed in seeds:
        speculator = fixed_speculator(scripted_target(), drafter, "chain", Budget(depth, depth, 1))
        _, said = speak(speculator, tokens, context_for(WARM, seed))
        accepted += sum(round.accepted for round in said)
        drafted += sum(len(round.tree) - 1 for round in said)
        rounds += len(said)
    return accepted / rounds, (drafted - accepted) / rounds


def drafter_with(stop: float) -> DraftModel:
    drafter = make_drafter(DRAFTERS["draft_model"], unsure_draft(), stop=stop)
    assert isinstance(drafter, DraftModel)
    return drafter


@cache
def trained() -> bytes:
    """The state of a drafter after replies from seeds that no test uses."""
    drafter = drafter_with(0.999)
    judged(drafter, 6, range(100, 108))
    return drafter.save_state()


def area_under_curve(scores, labels):
    """How often an accepted guess has a higher score than a refused one."""
    yes, no = scores[labels > 0][:, None], scores[labels == 0][None, :]
    return float(((yes > no).float() + 0.5 * (yes == no).float()).mean())


def test_on_new_texts_it_tells_accepted_guesses_from_refused_ones():
    drafter = drafter_with(0.999)
    drafter.restore_state(trained())
    head = drafter._stop
    assert head is not None
    seen = []
    judge = head.judge

    def noted(path, emitted):
        known = [
            (head._places[node], token) for node, token in zip(path, emitted, strict=False) if node in head._places
        ]
        seen.extend((place.chance, place.odds, float(place.token == token)) for place, token in known)
        judge(path, emitted)

    head.judge = noted
    judged(drafter, 6, range(4))
    said, own, labels = torch.tensor(seen).T
    assert len(labels) > 150
    assert area_under_curve(said, labels) > 0.7
    assert area_under_curve(own, labels) < 0.65, "the draft itself does not know"


def test_no_fixed_length_accepts_as_much_with_as_few_discarded_drafts():
    fixed = [judged(drafter_with(1.0), depth, range(4)) for depth in range(1, 9)]
    for stop in (0.5, 0.7):
        drafter = drafter_with(stop)
        drafter.restore_state(trained())
        accepted, discarded = judged(drafter, 8, range(4))
        assert accepted > fixed[0][0]
        assert all(discarded < more for length, more in fixed if length >= accepted)


@pytest.mark.parametrize("policy", ["chain", "best_first"])
def test_the_text_stays_the_targets_and_a_branch_that_ended_costs_no_pass(policy):
    drafter = drafter_with(0.7)
    drafter.restore_state(trained())
    speculator = fixed_speculator(scripted_target(), drafter, policy, Budget(8, 8, 1))
    text, rounds = speak(speculator, 40, context_for(WARM))
    assert text == plain_text(scripted_target(), 40, WARM)
    assert len({len(round.tree) for round in rounds}) > 2
    assert all(round.draft_passes == max(round.tree.depths) for round in rounds)


def test_before_it_has_learnt_it_says_the_drafts_own_probability_and_a_branch_is_the_product():
    head = StopHead(V, 0.7, str)
    tree = TokenTree(0, V)
    first = tree.add(ROOT, Guess(4))
    beside = tree.add(ROOT, Guess(5))
    second = tree.add(first, Guess(6))
    states = torch.randn(2, V, generator=torch.Generator().manual_seed(0))
    head.read([ROOT, first], states, [(4, -0.5), (6, -0.5)])
    half, product = 2.718281828**-0.5, 2.718281828**-1.0
    assert [head._stands(tree, node) for node in (ROOT, first, beside, second)] == pytest.approx(
        [1.0, half, 1.0 - half, product], rel=1e-4
    )
    assert [head.goes_on(tree, node) for node in (ROOT, first, beside, second)] == [True, True, True, True]
    head._threshold = 0.62
    assert [head.goes_on(tree, node) for node in (ROOT, first, beside, second)] == [True, True, True, False]


def test_what_was_learnt_is_kept_also_by_a_drafter_that_does_not_use_it():
    kept = trained()
    for stop in (1.0, 0.7):
        drafter = drafter_with(stop)
        drafter.restore_state(kept)
        assert drafter.save_state() == kept
    other = make_drafter(DRAFTERS["draft_model"], ScriptedModel(V + 1, lambda text: torch.zeros(V + 1)), stop=0.7)
    other.restore_state(kept)
    assert other.save_state() != kept, "a head for states of another width begins anew"
    drafter.restore_state(b"")
    assert drafter.save_state() == b"", "forgotten"


def test_a_head_for_other_weights_begins_anew():
    saved = {}
    for weights in ("one", "one", "other"):
        head = StopHead(V, 0.7, lambda name=weights: name)
        head.restore(saved.get("one", b""))
        for _ in range(0 if saved else 80):
            head.read([ROOT], torch.ones(1, V), [(4, -0.5)])
            head.judge([ROOT], [5])
        saved[weights] = head.to_bytes()
    assert saved["one"]
    assert not saved["other"]


@pytest.mark.parametrize("cut", [5, 100, 300], ids=str)
def test_damaged_states_are_refused(cut):
    with pytest.raises(ValueError, match="stopping head"):
        drafter_with(0.7).restore_state(trained()[:cut])
    with pytest.raises(ValueError, match="damaged"):
        drafter_with(0.7).restore_state(trained()[:60] + b"\xff\xff\xff\x7f" + trained()[64:])
