"""A draft model learns from replies, beside the target or in tokens of its own: it guesses more, and texts stay."""

from __future__ import annotations

import math
import time
from itertools import product

import pytest
import safetensors.torch
import torch
from contracts.kit import Letters, collect, context_for, converse
from contracts.tiny_networks import trained_resources
from training_kit import V, target
from two_vocabularies import TEXT, Pieces

from specchat.config.trained_drafters import NO_TRAINED
from specchat.core.sampling import Sampling
from specchat.core.tree import ROOT, TokenTree
from specchat.drafters.options import DIVERGENCES
from specchat.engine.server.kept_drafters import KeptDrafters, learning_report
from specchat.training import adapted_draft
from specchat.training.distillation import LOSSES

SETTINGS = {"policy": "chain", "controller": "fixed", "nodes": 3, "depth": 3, "width": 1, "max_tokens": 24}
LETTERS = sorted(set(TEXT) | set("éß"))
PAIRS = ["".join(pair) for pair in product(LETTERS, LETTERS)]
OWN, OTHER_WORDS = (Pieces(PAIRS[begin::4][: V - len(LETTERS)]) for begin in (0, 1))
NARROW = [[40, 41 + index, 42, 2] for index in range(4)]
OTHER = [[30, 31 + index, 33, 3] for index in range(4)]
RATE = 2e-2


@pytest.fixture(scope="module")
def models():
    return target(forgetful=True), target(seed=1, forgetful=True)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """A network of a few thousand numbers learns in larger steps than one of millions."""
    monkeypatch.setattr(adapted_draft, "LEARNING_RATE", RATE)


def conversed(models, drafter="draft_model", **settings):
    """A conversation whose draft model can learn, and what lets it."""
    own, other = (OWN, OTHER_WORDS) if drafter == "cross_vocabulary" else (OWN, OWN)
    resources = trained_resources(own, other)
    conversation = converse(models[0], models[1], Letters(V), resources, **{**SETTINGS, "drafter": drafter} | settings)
    return conversation, conversation.speculator.drafter._learning


def spoken(conversation, prompts, learning=None):
    """Share of the guesses that stood in replies to these prompts."""
    rounds = []
    for prompt in prompts:
        rounds += collect(conversation.reply(prompt, 7)).rounds
        if learning is not None:
            learning.reply_ended()
            idle(learning)
    return sum(round.accepted for round in rounds) / max(1, sum(round.tree.drafted for round in rounds))


def idle(learning):
    while learning.idle(time.monotonic() + 10):
        pass


def taught(models, prompts, updates, drafter="draft_model", **settings):
    conversation, learning = conversed(models, drafter, **settings)
    learning.learn(True)
    while learning.learnt.updates < updates:
        spoken(conversation, prompts, learning)
    return conversation, learning


@pytest.fixture(scope="module")
def states(models):
    """What the draft model has learnt in 20 updates from a narrow stream, by drafter."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adapted_draft, "LEARNING_RATE", RATE)
        taught_by = {"draft_model": 20, "cross_vocabulary": 28}
        given = {"method_options": {"cross_vocabulary.divergence": "jsd"}}
        return {
            name: taught(models, NARROW, updates, name, **given)[1].save_state() for name, updates in taught_by.items()
        }


def gone_on(models, states, drafter="draft_model", **settings):
    conversation, learning = conversed(models, drafter, **settings)
    learning.restore_state(states[drafter])
    learning.learn(True)
    return conversation, learning


def test_acceptance_on_a_narrow_stream_rises_over_20_updates_and_survives_a_change_of_subject(models, states):
    plain, _ = conversed(models)
    before, other_before = spoken(plain, NARROW), spoken(plain, OTHER)
    conversation, learning = gone_on(models, states)
    after = spoken(conversation, NARROW)
    assert after > before + 0.3
    learnt = learning.learnt
    assert learnt.updates >= 20
    assert learnt.now[0] > learnt.before[0] + 0.2 * learnt.chains
    spoken(conversation, OTHER, learning)
    assert spoken(conversation, OTHER) > other_before + 0.1
    assert spoken(conversation, NARROW) > before + 0.1


def test_with_other_tokens_it_learns_through_the_translation(models, states):
    before = spoken(conversed(models, "cross_vocabulary")[0], NARROW)
    assert spoken(gone_on(models, states, "cross_vocabulary")[0], NARROW) > before + 0.1


@pytest.mark.slow
def test_every_divergence_that_may_be_chosen_teaches(models):
    assert set(DIVERGENCES) <= set(LOSSES)
    before = spoken(conversed(models)[0], NARROW[:2])
    for divergence in DIVERGENCES[1:]:
        conversation, _ = taught(models, NARROW[:2], 10, method_options={"draft_model.divergence": divergence})
        assert spoken(conversation, NARROW[:2]) > before + 0.1, divergence


def test_what_is_learnt_in_draft_tokens_are_laws_of_shared_tokens_and_the_tokens_of_ngrams(models):
    conversation, learning = conversed(models, "cross_vocabulary")
    learning.learn(True)
    tokens = collect(conversation.reply(NARROW[0], 7)).tokens
    learning.reply_ended()
    places, spelt = learning._kept, {other: own for own, other in enumerate(OTHER_WORDS.pieces)}
    shared = {spelt[piece] for piece in OWN.pieces if piece in spelt}
    assert set(places.likeliest[~places.sure].flatten().tolist()) - {-1} <= shared
    assert bool((places.likeliest[~places.sure] < 0).any()), "some of the target's tokens are no draft tokens"
    assert bool(places.sure.any())
    named = places.likeliest[places.sure]
    assert torch.equal(named[:, 0], places.wrote[places.sure])
    assert torch.equal(places.log_p[places.sure].float().exp().sum(1), torch.ones(len(named)))
    assert len(places.wrote) > len(tokens) / 2


@pytest.mark.parametrize("drafter", ["draft_model", "cross_vocabulary"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_text_is_the_same_with_learning_on_and_off(models, drafter, temperature):
    def texts(learns):
        conversation, learning = conversed(models, drafter, temperature=temperature)
        learning.learn(learns)
        written = []
        for prompt in NARROW[:2]:
            written.append(collect(conversation.reply(prompt, 11)).tokens)
            learning.reply_ended()
            idle(learning)
        assert (learning.learnt.updates > 0) == learns
        return written

    assert texts(True) == texts(False)


@pytest.mark.slow
def test_draws_keep_the_targets_law_while_weights_move_between_rounds(models, states):
    """The first token of 420 rounds, drafted with other weights each time."""
    conversation, learning = gone_on(models, states, temperature=1.0, rule="multi_step")
    speculator, topic, warm = conversation.speculator, learning._topics[0], Sampling(temperature=1.0)
    text, counts, taken = NARROW[0], torch.zeros(V), []
    learnt, turned = topic.drafting, adapted_draft._copied(topic.drafting)
    turned.up.neg_()
    for seed in range(420):
        context = context_for(warm, seed, V, text)
        speculator.start(context.history)
        topic.drafting = (learnt, None, turned)[seed % 3]
        spoke = speculator.round(context)
        counts[spoke.emitted[0]] += 1
        taken.append(spoke.tree.drafted > 0 and spoke.accepted > 0)
    models[0].prefill(text[:-1])
    law = torch.softmax(models[0].read(TokenTree(text[-1], V).freeze()).after(ROOT)[:V].double(), dim=0)
    best = law.topk(7).indices
    wanted, found = 420 * law[best], counts[best].double()
    wanted = torch.cat([wanted, 420 - wanted.sum(0, keepdim=True)])
    found = torch.cat([found, 420 - found.sum(0, keepdim=True)])
    assert float(((found - wanted).square() / wanted).sum()) < 29.9, "p of chance is 1e-4 with seven degrees"
    shares = [sum(taken[which::3]) / 140 for which in range(3)]
    assert max(shares) > min(shares) + 0.1, "the weights make a difference"


def test_prompts_go_to_the_adapter_of_their_topic_which_other_topics_leave_alone(models, monkeypatch):
    conversation, learning = conversed(models, method_options={"draft_model.topics": 2})
    learning.learn(True)
    routed = []
    for prompt in [*NARROW[:2], *OTHER[:2], *NARROW[2:]]:
        spoken(conversation, [prompt], learning)
        routed.append(learning._topic)
    assert routed == [0, 0, 1, 1, 0, 0]
    first = [tensor.clone() for tensor in learning._topics[0].adapter.parameters()]
    spoken(conversation, OTHER[2:], learning)
    for one, other in zip(first, learning._topics[0].adapter.parameters(), strict=True):
        assert torch.equal(one, other)
    one_for_all, alone = conversed(models)
    alone.learn(True)
    for prompt in (NARROW[0], OTHER[0]):
        spoken(one_for_all, [prompt], alone)
    assert len(alone._topics) == 1


def test_what_was_learnt_is_saved_and_restored_and_forgotten(models, states):
    conversation, learning = conversed(models)
    untaught = spoken(conversation, NARROW)
    learning.restore_state(states["draft_model"])
    assert learning.save_state() == states["draft_model"]
    assert spoken(conversation, NARROW) > untaught + 0.3
    learning.restore_state(b"")
    assert learning.save_state() == b""
    assert spoken(conversation, NARROW) == untaught


def test_a_state_that_no_learning_can_have_saved_is_refused(models, states):
    learning, state = conversed(models)[1], states["draft_model"]
    wrongs = {
        "counters": (lambda tensor: -tensor - 1, lambda tensor: tensor[:2]),
        "judgement": (lambda tensor: tensor[:, 1:],),
        "0.up": (lambda tensor: tensor * math.nan, lambda tensor: tensor[1:]),
        "0.like": (lambda tensor: tensor[1:], lambda tensor: tensor.long()),
        "weights": (lambda tensor: torch.arange(64, dtype=torch.uint8),),
        "places.likeliest": (lambda tensor: tensor + V, lambda tensor: tensor - V, lambda tensor: tensor.float()),
        "places.wrote": (lambda tensor: tensor - V, lambda tensor: tensor[1:]),
        "places.topic": (lambda tensor: tensor + 1,),
        "places.log_p": (lambda tensor: tensor + 1, lambda tensor: tensor[:, 1:]),
        "places.states": (lambda tensor: tensor[:, 1:], lambda tensor: tensor * math.nan),
    }
    made = [state[:-9], b"x" * 99]
    for name, changes in wrongs.items():
        for wrong in changes:
            tensors = safetensors.torch.load(state)
            tensors[name] = wrong(tensors[name]).contiguous()
            made.append(safetensors.torch.save(tensors))
    for one in made:
        with pytest.raises(ValueError, match=r"its |no learnt adapters|other weights"):
            learning.restore_state(one)
        assert learning.save_state() == b""


def test_an_adapter_that_does_worse_is_dropped(models, states):
    conversation, learning = gone_on(models, states)
    learning._judgement = adapted_draft.Judgement()
    adapter = learning._topics[0].adapter
    for prompt in NARROW * 2:
        with torch.no_grad():
            adapter.up.copy_(torch.randn(adapter.up.shape, generator=torch.Generator().manual_seed(1)) * 3)
        collect(conversation.reply(prompt, 7))
        learning.reply_ended()
        learning._topics[0].owed = 0
        learning._kept.wrote[-learning._new :] = wrote_by_draft(models, learning)
        idle(learning)
    assert learning.learnt.went_back >= 1


def wrote_by_draft(models, learning):
    """What the draft model says without any adapter, as if the target had written it."""
    new = learning._kept.at(slice(-learning._new, None))
    return models[1].head(new.states.float()).argmax(dim=1).int()


@pytest.mark.parametrize("drafter", ["draft_model", "cross_vocabulary"])
def test_the_engine_keeps_what_a_draft_model_learns_under_its_name_and_reports_it(models, drafter):
    other = OTHER_WORDS if drafter == "cross_vocabulary" else OWN

    said = []

    def session(weights="12" * 32):
        kept = KeptDrafters(lambda: "ab" * 32, said.append)
        resources = trained_resources(OWN, other, draft_name="small", draft_sha256={"small": weights}.get)
        resources = resources.keeping(kept.keep)
        kept.learn(True)
        given = {**SETTINGS, "drafter": drafter, "learn": True}
        return converse(models[0], models[1], Letters(V), resources, **given), kept

    conversation, kept = session()
    collect(conversation.reply(NARROW[0], 7))
    kept.replied()
    kept.work(lambda: False)
    report = learning_report(conversation, NO_TRAINED, kept, forget=False)
    assert (report.drafter, report.replies, report.why) == ("small", 1, "")
    assert report.updates > 0
    assert report.disk_bytes > 0
    conversation, kept = session()
    again = learning_report(conversation, NO_TRAINED, kept, forget=False)
    assert (again.replies, again.updates) == (1, report.updates), "it is there after a restart"
    assert not said
    strange, kept_of_others = session("34" * 32)
    assert learning_report(strange, NO_TRAINED, kept_of_others, forget=False).replies == 0, "learnt on other weights"
    assert "other weights" in said.pop()
    kept_of_others.save()
    assert session()[1].kept_bytes("small") == report.disk_bytes, "and not written over before something is learnt"
    gone = learning_report(conversation, NO_TRAINED, kept, forget=True)
    assert (gone.replies, gone.disk_bytes) == (0, 0)
    assert gone.freed_bytes > 0
