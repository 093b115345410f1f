"""Sorted fine-tuning: every depth of one draft model guesses well, and one draft model drafts for two targets."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from contracts.kit import Letters, reply
from training_kit import REPLY, SOURCES, USER, V, some_texts, target

from specchat.config.trained_drafters import WEIGHTS, write_drafter
from specchat.models.decoder.decoder import Decoder
from specchat.models.decoder.early_exits import NestedDecoder
from specchat.models.decoder.pruning import PrunableFile
from specchat.models.draft_heads import FAMILIES
from specchat.models.draft_heads.loading import new_network, save_weights
from specchat.models.model_loading import Loaded, own_network
from specchat.models.trained_draft_model import load_trained_draft
from specchat.models.weights import families
from specchat.models.weights.weight_source import TensorSource
from specchat.training.corpus import Corpus, shared_with
from specchat.training.distillation import LOSSES, Distillation
from specchat.training.fitting import Fitting, Schedule
from specchat.training.job import command, sizes_asked_for
from specchat.training.losses import columns_of, labels_at, logits_of
from specchat.training.states import StateReading
from specchat.training.training_request import TrainingRequest

DEPTHS, STEPS = (1, 2, 3), 3
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model():
    return target(forgetful=True)


@pytest.fixture(scope="module")
def corpus(model, tmp_path_factory):
    reading = StateReading(model, "ab" * 32, tmp_path_factory.mktemp("states"), states=False)
    return Corpus([reading.shard(some_texts(80))], STEPS, reads_back=True, reads_states=False)


def begun(model, corpus, depths, seed=0):
    sizes = FAMILIES["draft_model"].load().sizes_for(model.network.shape, ())
    sizes = replace(sizes, layers=DEPTHS[-1], depths=depths)
    return new_network("draft_model", sizes, shared_with(model, corpus, V), torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def trained(model, corpus, tmp_path_factory):
    """Two networks that learnt the same texts from the same numbers: at every depth, and at the last alone."""

    def fit(depths):
        network = begun(model, corpus, depths)
        folder = tmp_path_factory.mktemp("run")
        loss = Distillation(LOSSES["forward_kl"])
        Fitting(network, corpus, Schedule(3000, 0.0, 1.2e-2, 10**9), folder, V, STEPS, 4, 0, {}, loss=loss).run(
            lambda standing: None
        )
        return network

    return fit(DEPTHS), fit(())


def losses_by_depth(network, corpus) -> list[float]:
    """Of texts that were never learnt from, the mean divergence after each depth."""
    network.sizes = replace(network.sizes, depths=DEPTHS)
    columns, total, places = columns_of(network.shared.tokens, V), torch.zeros(len(DEPTHS)), 0
    with torch.no_grad():
        for batch in corpus.unseen(16):
            rows, at = batch.drafted(1, batch.tokens.shape[1] - 1).nonzero(as_tuple=True)
            labels = labels_at(batch, rows, at + 1, columns)
            for depth, states in enumerate(network.states_by_depth(network.fused(batch.features), batch.tokens)):
                total[depth] += LOSSES["forward_kl"](logits_of(network, states[rows, at]), labels, None).sum()
            places += len(rows)
    return (total / places).tolist()


def test_a_step_learns_by_the_mean_of_the_losses_of_all_depths(model, corpus):
    network, batch = begun(model, corpus, DEPTHS), next(corpus.epoch(0, 0, 4))[0]
    columns, loss = columns_of(network.shared.tokens, V), Distillation(LOSSES["forward_kl"])
    whole, places = loss(network, batch, columns, 1, torch.Generator())
    single = []
    for depth in DEPTHS:
        network.sizes = replace(network.sizes, depths=(depth,), layers=depth)
        single.append(loss(network, batch, columns, 1, torch.Generator())[0])
    torch.testing.assert_close(whole, torch.stack(single).mean())
    assert places == int(batch.drafted(1, batch.tokens.shape[1] - 1).sum())
    assert len({round(float(one.detach()), 4) for one in single}) == len(DEPTHS)
    single[0].backward()
    reached = {name for name, parameter in network.named_parameters() if parameter.grad is not None}
    assert reached == {"norm"} | {name for name in dict(network.named_parameters()) if name.startswith("layers.0.")}


def test_every_depth_is_better_than_the_same_depth_of_one_that_learnt_at_full_depth_alone(model, corpus, trained):
    nested, cut_off = (losses_by_depth(network, corpus) for network in trained)
    untrained = losses_by_depth(begun(model, corpus, DEPTHS), corpus)
    for depth in range(len(DEPTHS) - 1):
        assert nested[depth] < 0.9 * cut_off[depth], (nested, cut_off)
    assert all(learnt < 0.7 * before for learnt, before in zip(nested, untrained, strict=True)), (nested, untrained)


def another(model, noise: float) -> Loaded:
    """A target of the same tokens and nearly the same law whose states mean something else: turned, and disturbed."""
    turn = torch.linalg.qr(torch.randn(64, 64, generator=torch.Generator().manual_seed(1)))[0]
    chance, tensors = torch.Generator().manual_seed(2), {}
    for name, tensor in SOURCES[model]._tensors.items():
        made = tensor.clone()
        if tensor.dim() == 2:
            made = turn.T @ made if name.endswith(("o_proj.weight", "down_proj.weight")) else made @ turn
            made += noise * made.std() * torch.randn(made.shape, generator=chance)
        tensors[name] = made
    return loaded(tensors, model.network.shape)


def loaded(tensors, shape) -> Loaded:
    source = TensorSource(tensors, families.FAMILIES["llama"])

    def made(shape, source):
        return own_network(shape, source, "float32", CPU, "torch")[0]

    decoder = Decoder(made(shape, source), 1024)
    file = PrunableFile(decoder, lambda: (source, shape), made)
    return Loaded("tiny", decoder, None, frozenset(), 0, "float32", prunable=file)


def made(network, folder):
    """The folder of a trained draft model."""
    folder.mkdir()
    save_weights(network, folder / WEIGHTS)
    return write_drafter(
        folder, method="draft_model", target="tiny", target_sha256="ab" * 32, licence="Apache-2.0",
        options=network.sizes.options(), data={}, figures={},
    )  # fmt: skip


def accepted(target, draft) -> float:
    """Guesses that are right in a pass of the target, over a few greedy replies, drafted with early exits."""
    assert isinstance(draft, NestedDecoder)
    right = rounds = 0
    for first in range(3, 6):
        said = reply(
            target, draft, [USER, first, first + 7, REPLY], vocabulary=Letters(V), drafter="draft_model",
            policy="chain", temperature=0.0, max_tokens=24, controller="fixed", depth=3, nodes=3, width=1,
            method_options={"draft_model.leave_at": "0.5"},
        )  # fmt: skip
        right += sum(len(round.verdict.path) for round in said.rounds)
        rounds += len(said.rounds)
    return right / rounds


def test_one_draft_model_drafts_for_the_target_that_it_learnt_from_and_for_another(model, corpus, trained, tmp_path):
    """The other target's states mean something else, so the draft model brings embedding and head of its own target."""
    network = trained[0]
    network.sizes = replace(network.sizes, depths=DEPTHS)
    folder = made(network, tmp_path / "learnt")
    untrained = made(begun(model, corpus, DEPTHS), tmp_path / "untrained")
    own = loaded(SOURCES[model]._tensors, model.network.shape)
    other = another(model, 0.03)
    lender = own.prunable.opened()
    found = {
        "own": accepted(own.model, load_trained_draft(folder, own).model),
        "own, untrained": accepted(own.model, load_trained_draft(untrained, own).model),
        "other": accepted(other.model, load_trained_draft(folder, other, lender).model),
        "other, untrained": accepted(other.model, load_trained_draft(untrained, other, lender).model),
        "other, with its own embedding": accepted(other.model, load_trained_draft(folder, other).model),
    }
    assert found["own"] > 5 * found["own, untrained"] + 0.1, found
    assert found["other"] > 5 * found["other, untrained"] + 0.1, found
    assert found["other"] > 5 * found["other, with its own embedding"] + 0.1, found


def test_a_request_says_which_depths_and_which_form_are_trained():
    shape = target().network.shape
    request = partial(TrainingRequest, "tiny", prompts="self", tokens=6000, hours=0.0, name="mine")
    made = {name: FAMILIES[name].load().sizes_for(shape, (0, 3)) for name in ("draft_model", "eagle", "hydra")}
    nested, plain = (
        sizes_asked_for(made["draft_model"], request("draft_model", depths=given)) for given in ("1,3", "")
    )
    assert (nested.layers, nested.depths, plain.depths) == (3, (1, 3), ())
    forms = [sizes_asked_for(made["eagle"], request("eagle", form=form)) for form in ("", "eagle", "fs", "fspad")]
    assert [(one.sampled, one.parted) for one in forms] == [(0, 0), (0, 0), (128, 0), (128, 1)]
    assert sizes_asked_for(made["hydra"], request("hydra")) == made["hydra"]
    assert "--depths 1,3" in command(request("draft_model", depths="1, 3"))
    assert "--form fspad" in command(request("eagle", form="fspad"))
