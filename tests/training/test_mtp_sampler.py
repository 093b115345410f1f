"""The sampler on top of `mtp`'s masks knows the token before a guess, and masks learn the target's own states."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from training_kit import V, own_texts, target, weights_of

from specchat.models.draft_heads import FAMILIES
from specchat.models.draft_heads.head import STEPS
from specchat.models.draft_heads.loading import new_network
from specchat.training import mask_learning
from specchat.training.corpus import Corpus, shared_with
from specchat.training.fitting import Fitting, Schedule
from specchat.training.losses import columns_of
from specchat.training.mask_learning import FrozenTarget, MaskLearning
from specchat.training.states import StateReading, tapped_layers


@pytest.fixture(scope="module")
def model():
    return target(forgetful=True)


@pytest.fixture(scope="module")
def corpus(model, tmp_path_factory):
    shard = StateReading(model, "ab" * 32, tmp_path_factory.mktemp("states")).shard(own_texts(model))
    return Corpus([shard], STEPS, reads_back=True)


@pytest.fixture
def network(model, corpus):
    sizes = FAMILIES["mtp"].load().sizes_for(model.network.shape, tapped_layers(model.layers))
    return new_network("mtp", sizes, shared_with(model, corpus, V), torch.Generator().manual_seed(0))


@pytest.fixture
def learning(model):
    return MaskLearning(FrozenTarget(model.network.shape, weights_of(model), torch.float32, torch.device("cpu")))


def loss_of(learning, network, batch):
    columns = columns_of(network.shared.tokens, V)
    with torch.no_grad():
        return float(learning.loss(network, batch, columns, STEPS, torch.Generator().manual_seed(0))[0])


@pytest.mark.parametrize(("ahead", "apart"), [(1, False), (0, True), (2, True)])
def test_consistency_is_with_the_states_of_the_tokens_in_whose_place_masks_stand(
    network, learning, corpus, monkeypatch, ahead, apart
):
    """With the target's own states in the place of the masks' nothing is lost."""
    [batch] = corpus.unseen(16)

    def states(embedded, places, masks, added, entry):
        at = (places[..., None] + ahead + torch.arange(len(masks))).clamp_max(batch.tokens.shape[1] - 1)
        rows = torch.arange(len(places))[:, None, None]
        return batch.features[rows, at, -1]

    monkeypatch.setattr(learning.target, "states", states)
    found = []
    for weight in (0.0, 100.0):
        monkeypatch.setattr(mask_learning, "CONSISTENCY", weight)
        found.append(loss_of(learning, network, batch))
    assert (found[1] - found[0] > 10.0) == apart
    assert apart or found[1] == pytest.approx(found[0], abs=1e-3)


@pytest.mark.slow
def test_a_sampler_that_was_trained_guesses_more_than_the_masks_alone(network, learning, corpus, tmp_path, monkeypatch):
    """Its target hardly looks further back than one token: what follows depends on the one before."""
    Fitting(
        network, corpus, Schedule(3600, 0.0, 1e-2, 3600), tmp_path, V, STEPS, 4, 0, {"method": "mtp"},
        loss=learning.loss, accepted=learning.acceptance,
    ).run(lambda standing: None)  # fmt: skip
    [batch] = corpus.unseen(16)
    columns = columns_of(network.shared.tokens, V)
    sampled = learning.acceptance(network, batch, columns, STEPS)
    monkeypatch.setattr(network, "sampled", lambda states, before: None)
    alone = learning.acceptance(network, batch, columns, STEPS)
    assert sum(sampled.right) > sum(alone.right) > 0


def test_an_ensemble_is_learnt_as_the_mean_of_its_members(model, corpus, learning):
    made = FAMILIES["prompt_tokens"].load().sizes_for(model.network.shape, ())
    alone, pair = (
        new_network("prompt_tokens", replace(made, ensemble=count), shared_with(model, corpus, V), torch.Generator())
        for count in (1, 2)
    )
    [batch] = corpus.unseen(16)
    with torch.no_grad():
        for number, embedding in enumerate(pair.embeddings):
            embedding.copy_(alone.embeddings[number % 3])
        assert loss_of(learning, pair, batch) == pytest.approx(loss_of(learning, alone, batch), rel=1e-4)
        pair.embeddings[3].mul_(-1.0)
        assert loss_of(learning, pair, batch) != pytest.approx(loss_of(learning, alone, batch), rel=1e-3)
    assert len(pair.tensors()) == 6
