"""Learning to fill windows: the loss, which places the target's law is learnt at, and a whole training that goes on."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from training_kit import CHECKSUM, V, recipe, some_texts, subject, target

from specchat.config import data_dir
from specchat.config.trained_drafters import TrainedDrafters, read_drafter
from specchat.core.budget import Budget
from specchat.core.context import Context
from specchat.core.tree import ROOT, TokenTree
from specchat.drafters.choice import choose
from specchat.drafters.parts import PairResources, Parts
from specchat.errors import UsageError
from specchat.models.draft_heads import FAMILIES
from specchat.models.draft_heads.loading import new_network
from specchat.models.draft_heads.specdiff import denoiser
from specchat.settings import Settings
from specchat.training import job
from specchat.training import texts as text_writing
from specchat.training.corpus import Corpus, shared_with
from specchat.training.distillation import LOSSES, DenoisingLoss
from specchat.training.job import Job
from specchat.training.limits import refuse_unknown_loss
from specchat.training.losses import columns_of
from specchat.training.states import StateReading
from specchat.training.training_request import TrainingRequest


@pytest.fixture(scope="module")
def model():
    return target(forgetful=True)


@pytest.fixture(scope="module")
def corpus(model, tmp_path_factory):
    reading = StateReading(model, CHECKSUM, tmp_path_factory.mktemp("states"))
    return Corpus([reading.shard(some_texts(20))], recipe("specdiff").steps, True, reads_states=False)


def network_for(model, corpus, guessed=V):
    sizes = dataclasses.replace(FAMILIES["specdiff"].load().sizes_for(model.network.shape, ()), masks=4, layers=2)
    shared = shared_with(model, corpus, guessed)
    return new_network("specdiff", sizes, shared, torch.Generator().manual_seed(0)).requires_grad_(True)


def loss_of(network, batch, law=None, seed=5):
    columns = columns_of(network.shared.tokens, V)
    return DenoisingLoss(law)(network, batch, columns, 0, torch.Generator().manual_seed(seed))


def test_the_loss_is_the_likelihood_of_masked_tokens_each_by_the_inverse_of_its_time(model, corpus):
    """Written down the long way, window by window; some tokens cannot be guessed."""
    network, (batch, _) = network_for(model, corpus, V // 2).requires_grad_(False), next(corpus.epoch(0, 0, 2))
    columns, generator = columns_of(network.shared.tokens, V), torch.Generator().manual_seed(5)
    (texts, length), masks, begins = batch.tokens.shape, 4, int(batch.first.min()) + 1
    times = torch.rand(texts, length - begins, 1, generator=generator)
    masked = torch.rand(texts, length - begins, masks, generator=generator) < times
    total, windows, left_out = 0.0, 0, 0
    for text in range(texts):
        first, last, tokens = int(batch.first[text]), int(batch.last[text]), batch.tokens[text]
        for root in range(first + 1, last + 1):
            windows += 1
            within = [root + 1 + place <= last + 1 for place in range(masks)]
            shown = torch.tensor([within[place] and not masked[text, root - begins, place] for place in range(masks)])
            states = network.windows(tokens[None], shown)[0, root]
            laws = network.logits(network.widen(states)).log_softmax(-1)
            for place in range(masks):
                if within[place] and not shown[place]:
                    column = int(columns[tokens[root + 1 + place]])
                    total -= float(laws[place, column] / times[text, root - begins, 0]) if column >= 0 else 0.0
                    left_out += column < 0
    found, counted = loss_of(network, batch)
    assert counted == windows > 10
    assert left_out
    assert float(found) == pytest.approx(total / windows, rel=1e-4)


def test_the_targets_law_is_learnt_where_nothing_behind_is_shown_and_nowhere_else(model, corpus):
    network, (batch, _) = network_for(model, corpus).requires_grad_(False), next(corpus.epoch(0, 0, 2))
    asked = []

    def nothing(logits, labels, generator):
        asked.append(len(logits))
        return torch.zeros(len(logits))

    alone, mixed, whole = (float(loss_of(network, batch, law)[0]) for law in (None, nothing, LOSSES["forward_kl"]))
    assert 0 < mixed < alone, "places with a token behind them keep its likelihood"
    assert whole > mixed
    assert math.isfinite(whole)
    changed = dataclasses.replace(batch, likeliest=batch.likeliest.flip(2))
    assert float(loss_of(network, changed)[0]) == alone, "the control: without a law it is not looked at"
    assert float(loss_of(network, changed, LOSSES["forward_kl"])[0]) != whole


def test_the_gradient_is_that_of_finite_differences(model, corpus):
    network, (batch, _) = network_for(model, corpus).double(), next(corpus.epoch(0, 0, 2))
    shared = network.shared
    network.shared = dataclasses.replace(shared, embed=lambda t: shared.embed(t).double(), head=shared.head.double())
    for law in (None, LOSSES["forward_kl"]):
        for name, parameter in network.named_parameters():
            place, step = int(parameter.abs().argmax()), 1e-5
            network.zero_grad()
            loss_of(network, batch, law)[0].backward()
            found = float(parameter.grad.flatten()[place])
            with torch.no_grad():
                flat = parameter.view(-1)
                flat[place] += step
                above = float(loss_of(network, batch, law)[0])
                flat[place] -= 2 * step
                below = float(loss_of(network, batch, law)[0])
                flat[place] += step
            assert found == pytest.approx((above - below) / (2 * step), rel=2e-3, abs=1e-6), name


def test_a_training_that_was_cut_off_goes_on_and_its_drafter_drafts(tmp_path, monkeypatch, model):
    monkeypatch.setattr(job, "_MEASUREMENTS", 4)
    monkeypatch.setattr(text_writing, "REPLY_TOKENS", 24)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(f"w{a} w{b} w5 w{a}" for a in range(3, 12) for b in range(20, 28)))
    about = subject(model)

    def begun(tell, **changes):
        request = TrainingRequest("tiny", "specdiff", str(prompts), 1000, 0.0, "mine", **changes)
        return Job(request, about, tell)

    def interrupt(stage):
        if stage.name == "learning" and stage.done > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        begun(interrupt).run()
    early = read_drafter(data_dir() / "drafters" / "mine", ("specdiff",))
    trained = begun(lambda stage: None, resume=True).run()
    assert trained.figures["tokens_seen"] > early.figures["tokens_seen"] > 0
    assert begun(print, resume=True)._loss(None) == DenoisingLoss()
    assert begun(print, resume=True, loss="jsd")._loss(None) == DenoisingLoss(LOSSES["jsd"])
    curve = trained.figures["curve_tau"]
    assert max(curve) > curve[0] + 0.1, "it has learnt something"

    resources = PairResources(trained=TrainedDrafters("tiny", (trained,)), make_denoiser=denoiser)
    drafter = Parts(model, resources=resources).build(choose("specdiff", Settings()))
    text = [1, *range(3, 30)]
    context = Context(text, len(text), V, budget=Budget(8, 8, 1))
    drafter.start(text)
    [said] = drafter.propose(TokenTree(text[-1], V), [ROOT], 3, context)
    assert len(said) == 3


def test_flags_for_other_ways_of_learning_are_refused():
    for flags, said in (
        (("", "", "reached"), "--select is for networks that learn place by place; specdiff learns from windows"),
        (("", "mine", ""), "--reference is for networks"),
        (("tree", "", "", "mine"), "--loss 'tree' is not one that can be learnt with"),
        (("forward_lk", "", ""), "--loss 'forward_lk' is not one that can be learnt with; did you mean 'forward_kl'"),
    ):
        with pytest.raises(UsageError, match=said):
            refuse_unknown_loss("specdiff", *flags)
    refuse_unknown_loss("specdiff", "forward_kl", "", "")
