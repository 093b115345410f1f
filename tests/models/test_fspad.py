"""FSPAD: tokens gate states in a wider space, and the part that is aligned is not the part that logits come from."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from contracts.kit import PROMPT, Letters, collect, converse, plain_text
from contracts.models import shared_network
from contracts.tiny_networks import tiny_trained, trained_resources
from test_learned_networks import STEPS, TAPS, D, made, text

from specchat.config.trained_drafters import TrainedDrafters
from specchat.core.sampling import Sampling
from specchat.errors import ConfigError
from specchat.models.backends.transformers_model import ReferenceModel
from specchat.models.draft_heads.eagle import EagleSizes
from specchat.models.draft_heads.layers import rms_normalize
from specchat.models.draft_heads.loading import new_network
from specchat.training.corpus import Corpus, shared_with
from specchat.training.limits import FORMS
from specchat.training.losses import STATE_SHARE, chain_loss, columns_of, state_distance
from specchat.training.states import StateReading, tapped_layers
from tests.training.training_kit import V, recipe, some_texts, target


def states_of(network) -> list[torch.Tensor]:
    features, tokens = text()
    return network.states(network.fused(features), tokens, STEPS)


def gradients(network, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    network.zero_grad()
    loss.backward(retain_graph=True)
    return {name: one.grad.clone() for name, one in network.named_parameters() if one.grad is not None}


def aligning(network, states: torch.Tensor) -> torch.Tensor:
    goal = torch.randn(states.shape[0] * states.shape[1], D, generator=torch.Generator().manual_seed(4))
    return state_distance(network.aligned(states).flatten(0, 1), goal, 1e-5).sum()


def test_the_distance_of_states_pulls_at_nothing_that_logits_alone_depend_on():
    """Of the last product the rows of the part for the head, and the norm before the head; at every step."""
    network = made("fspad")
    for states in states_of(network):
        found = gradients(network, aligning(network, states))
        assert found["down.weight"][D:].abs().max() == 0
        assert "norm" not in found
        assert found["down.weight"][:D].abs().min() > 0
    whole = made("fs")
    for states in states_of(whole):
        found = gradients(whole, aligning(whole, states))
        assert found["norm"].abs().max() > 0, "where one part does both, the head's own factors are pulled at"
        assert found["down.weight"].shape == (D, 24)


def test_logits_of_the_first_step_pull_at_nothing_that_is_aligned_and_later_ones_do():
    """A later step goes on from the aligned part."""
    network = made("fspad")
    first, second, *_ = (network.logits(states).square().sum() for states in states_of(network))
    assert gradients(network, first)["down.weight"][:D].abs().max() == 0
    assert gradients(network, first)["down.weight"][D:].abs().max() > 0
    assert gradients(network, second)["down.weight"][:D].abs().max() > 0


def test_the_layer_reads_the_gated_state_in_the_place_of_both_side_by_side():
    network, generator = made("fs"), torch.Generator().manual_seed(5)
    inputs, tokens = torch.randn(2, 3, D, generator=generator), torch.randn(2, 3, D, generator=generator)
    residual, queries, *_ = network.before_attention(inputs, tokens, torch.arange(3))
    normed = rms_normalize(inputs, 1e-5) * network.state_norm
    wide = (normed @ network.sample_up.weight.T) * F.silu(tokens @ network.sample_gate.weight.T)
    sampled = wide @ network.sample_down.weight.T
    torch.testing.assert_close(residual, sampled)
    heads = rms_normalize(sampled, 1e-5) @ network.qkv.weight.T
    torch.testing.assert_close(queries[:, 0].flatten(1), heads[:, 0, : queries.shape[2] * 8])
    assert wide.shape[-1] == 2 * D, "it is gated in a space of twice the width"
    other = network.before_attention(inputs, torch.zeros_like(tokens), torch.arange(3))[0]
    assert other.abs().max() == 0, "a token that gates nothing lets nothing through"


@pytest.mark.parametrize(("form", "outputs", "width"), [("eagle", D, 2 * D), ("fs", D, D), ("fspad", 2 * D, D)])
def test_the_forms_have_their_shapes(form, outputs, width):
    network = made(form)
    assert [states.shape[-1] for states in states_of(network)] == [outputs] * STEPS
    assert network.qkv.weight.shape[1] == width
    assert {name for name in network.tensors() if name.startswith("sample_")} == (
        set() if form == "eagle" else {"sample_up.weight", "sample_gate.weight", "sample_down.weight"}
    )


def test_wrong_sizes_are_refused_in_one_line():
    known = EagleSizes(D, TAPS, inner=24, heads=4, kv_heads=2, head_dim=8).options()
    for wrong, said in (
        ({"parted": 2}, "parted = 2 is not a whole number from 0 to 1"),
        ({"sampled": -1}, "sampled = -1 is not a whole number from 0"),
        ({"sampeld": 64}, "unknown key 'sampeld'; did you mean 'sampled'"),
    ):
        with pytest.raises(ConfigError, match=said):
            EagleSizes.read(known | wrong, "drafter.toml, [options]")


@pytest.mark.parametrize("form", FORMS)
def test_the_loss_of_a_step_of_learning_has_the_distance_of_the_aligned_part(form, tmp_path, monkeypatch):
    model = target(forgetful=True)
    corpus = Corpus([StateReading(model, "ab" * 32, tmp_path).shard(some_texts(24))], recipe("eagle").steps, True)
    sizes = EagleSizes.like_target(model.network.shape, tapped_layers(model.layers)).of_form(form)
    network = new_network("eagle", sizes, shared_with(model, corpus, V), torch.Generator().manual_seed(0))
    batch, _ = next(corpus.epoch(0, 0, 4))
    columns = columns_of(network.shared.tokens, V)
    loss, chains = chain_loss(network, batch, columns, 1, torch.Generator().manual_seed(1))
    monkeypatch.setattr("specchat.training.losses.STATE_SHARE", 0.0)
    laws, _ = chain_loss(network, batch, columns, 1, torch.Generator().manual_seed(1))
    (states,) = network.states(network.fused(batch.features), batch.tokens, 1)
    rows, places = batch.drafted(1, states.shape[1]).nonzero(as_tuple=True)
    part = states[rows, places][:, : sizes.hidden]
    own = rms_normalize(part, sizes.epsilon) * (1 if form == "fspad" else network.norm)
    apart = (own - rms_normalize(batch.features[rows, places + 1, -1], sizes.epsilon)).square().mean(dim=1)
    torch.testing.assert_close((loss - laws) * chains, STATE_SHARE * apart.sum(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {"temperature": 0.9, "policy": "best_first"}])
def test_the_text_stays_the_targets_own_with_every_form(form, settings):
    model = ReferenceModel(shared_network("llama"), 256)
    given = TrainedDrafters("tiny", (tiny_trained(form, model, share=1.0),))
    known = {"top_p": 1.0, "max_tokens": 30, "controller": "fixed", "depth": 3, "nodes": 6, "width": 2, **settings}
    chat = converse(model, None, Letters(61), trained_resources(trained=given), drafter="eagle", **known)
    said = collect(chat.reply(PROMPT, 7))
    assert said.tokens == plain_text(model, 30, Sampling(temperature=settings["temperature"]), prompt=PROMPT)
    assert sum(round.tree.drafted for round in said.rounds) > 30
