"""A trained draft model runs between its target's embedding and head, drafts for it, and never changes the text."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from contracts.kit import plain_text, reply
from contracts.models import native_is_here, shared_network, source_of
from tiny_draft_models import draft_folder, draft_sizes

from specchat.config.trained_drafters import TrainedDrafter
from specchat.core.sampling import Sampling
from specchat.core.tree import ROOT, TokenTree
from specchat.errors import ConfigError, ModelError, WeightsError
from specchat.models import trained_draft_model
from specchat.models.cpu_kernels.network import NativeNetwork
from specchat.models.decoder.decoder import Decoder
from specchat.models.decoder.pruning import PrunableFile
from specchat.models.decoder.shape import Shape
from specchat.models.draft_heads.draft_language_model import DraftModelSizes
from specchat.models.draft_heads.head import SharedWeights
from specchat.models.draft_heads.loading import load_network
from specchat.models.model_loading import Loaded, own_network
from specchat.models.trained_draft_model import load_trained_draft
from tests.training.training_kit import unroll

CPU, V, TEXT = torch.device("cpu"), 61, [1, 7, 30, 7, 2, 59, 14, 7, 30, 11, 5, 5, 41, 3, 3, 8]
PROMPT = [3, 5, 7, 3, 5, 9, 3, 5]


def target_of(family: str, precision: str = "float32", kernels: str = "torch") -> Loaded:
    network = shared_network(family)
    shape, source = Shape.of(network.config), source_of(network)

    def made(shape, source):
        return own_network(shape, source, precision, CPU, kernels)[0]

    decoder = Decoder(made(shape, source), 512)
    file = PrunableFile(decoder, lambda: (source, shape), made)
    return Loaded("tiny", decoder, None, frozenset(), 0, precision, prunable=file)


def as_trained(folder: TrainedDrafter, target: Decoder):
    return load_network(
        folder.method, folder.options, folder.weights, lambda tokens: SharedWeights.of(target, torch.arange(V))
    )


def logits_after(model, text) -> torch.Tensor:
    model.prefill(text[:-1])
    return model.read(TokenTree(text[-1], model.vocab_size).freeze()).after(ROOT)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "smollm3", "gemma3_text"])
def test_it_says_what_the_network_said_that_was_trained(family, tmp_path):
    """Whatever its target has besides Llama's parts: biases, norms of heads, scaled embeddings, windows."""
    folder, target = draft_folder(tmp_path / "mine"), target_of(family)
    draft = load_trained_draft(folder, target)
    network = as_trained(folder, target.model)
    features = torch.zeros(1, len(TEXT), 1, 32)
    with torch.no_grad():
        wanted = unroll(network, features, torch.tensor([TEXT]), 1)[0][0, -1]
        without = network.logits(network.shared.embed(torch.tensor(TEXT[-1:])))[0]
    torch.testing.assert_close(logits_after(draft.model, TEXT), wanted, atol=2e-4, rtol=2e-4)
    assert not torch.allclose(without, wanted, atol=0.1), "its layers matter"
    assert draft.model.network.shape.layers == 2
    assert (draft.name, draft.model.context_tokens) == ("mine", 512)


@pytest.mark.skipif(not native_is_here(), reason="no C compiler")
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_compiled_kernels_multiply_it_where_they_multiply_its_target(precision, tmp_path):
    folder, target = draft_folder(tmp_path / "mine"), target_of("llama", precision, "native")
    exact = load_trained_draft(folder, target_of("llama"))
    draft = load_trained_draft(folder, target)
    assert isinstance(draft.model.network, NativeNetwork)
    one, other = logits_after(draft.model, TEXT), logits_after(exact.model, TEXT)
    assert 0 < float((one - other).abs().max()) < 0.2 * float(other.std())


def test_the_layers_are_let_go_once_they_are_packed(tmp_path, monkeypatch):
    loaded = []

    def remembered(*given):
        network = load_network(*given)
        loaded.append(weakref.ref(network))
        return network

    monkeypatch.setattr(trained_draft_model, "load_network", remembered)
    draft = load_trained_draft(draft_folder(tmp_path / "mine"), target_of("llama"))
    gc.collect()
    assert [one() for one in loaded] == [None]
    assert logits_after(draft.model, TEXT).isfinite().all()


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("policy", ["chain", "best_first"])
def test_the_text_stays_the_targets_own(temperature, policy, tmp_path):
    target = target_of("llama").model
    draft = load_trained_draft(draft_folder(tmp_path / "mine"), target_of("llama")).model
    said = reply(
        target, draft, PROMPT, drafter="draft_model", policy=policy, temperature=temperature, top_p=1.0, max_tokens=60,
        controller="fixed", depth=3, nodes=6, width=2,
    )  # fmt: skip
    assert said.tokens == plain_text(target, 60, Sampling(temperature=temperature), prompt=PROMPT)
    assert sum(round.tree.drafted for round in said.rounds) > 40


def test_a_p_q_rule_accepts_one_draw_as_often_as_the_laws_overlap(tmp_path):
    """α = 1 − TVD, at the places where it was drawn."""
    target = target_of("llama").model
    draft = load_trained_draft(draft_folder(tmp_path / "mine"), target_of("llama")).model
    said = reply(
        target, draft, PROMPT, drafter="draft_model", policy="chain", rule="multi_step", temperature=1.0, top_p=1.0,
        max_tokens=400, controller="fixed", depth=1, nodes=1, width=1, method_options={"draft_model.trim": 0},
    )  # fmt: skip
    text, accepted, overlaps, likeliest = list(PROMPT), [], [], []
    for round in said.rounds:
        p, q = (logits_after(model, text).softmax(0) for model in (target, draft))
        overlaps.append(float(torch.minimum(p, q).sum()))
        likeliest.append(float(p.argmax() == q.argmax()))
        accepted.append(len(round.verdict.path))
        text += round.emitted
    count = len(accepted)
    assert count > 200
    mean = sum(overlaps) / count
    error = (sum(one * (1 - one) for one in overlaps) ** 0.5) / count
    assert abs(sum(accepted) / count - mean) < 3 * error
    assert abs(sum(likeliest) / count - mean) > 3 * error, "agreement of the likeliest tokens is something else"
    assert 0.02 < mean < 0.98


def test_it_guesses_the_tokens_that_it_was_trained_for_and_those_of_the_text(tmp_path):
    target = target_of("llama").model
    draft = load_trained_draft(draft_folder(tmp_path / "mine", tokens=range(40, 60)), target_of("llama")).model

    def guessed(**options) -> set[int]:
        said = reply(
            target, draft.with_new_cache(), PROMPT, drafter="draft_model", policy="chain", max_tokens=30, depth=4,
            nodes=4, controller="fixed", method_options={f"draft_model.{key}": value for key, value in options.items()},
        )  # fmt: skip
        own = {*PROMPT, *said.tokens}
        return {token for round in said.rounds for token in round.tree.tokens[1:]} - own

    assert guessed() <= set(range(40, 60))
    assert guessed(), "some of them are not in the text"
    assert guessed(trim=0) - set(range(40, 60)), "all tokens can be asked for"
    with pytest.raises(ModelError, match="guesses token 61; the target has 61"):
        load_trained_draft(draft_folder(tmp_path / "wide", tokens=range(50, 62)), target_of("llama"))


def test_a_target_of_another_width_or_without_readable_weights_is_refused(tmp_path):
    with pytest.raises(ModelError, match=r"'wide' has states of 64 numbers; the target has 32"):
        load_trained_draft(draft_folder(tmp_path / "wide", hidden=64), target_of("llama"))
    loaded = target_of("llama")
    other = Loaded("tiny", loaded.model, None, frozenset(), 0, "float32")
    with pytest.raises(ModelError, match="needs a target that runs in specchat's own decoder"):
        load_trained_draft(draft_folder(tmp_path / "mine"), other)


def test_damaged_weights_and_sizes_that_are_none_are_named(tmp_path):
    folder = draft_folder(tmp_path / "mine")
    data = folder.weights.read_bytes()
    folder.weights.write_bytes(data[:-5])
    with pytest.raises(WeightsError, match=r"weights\.safetensors"):
        load_trained_draft(folder, target_of("llama"))
    for wrong, said in (
        ({"kv_heads": 3}, "multiple of kv_heads"),
        ({"head_dim": 7}, "is odd"),
        ({"layers": 0}, "layers = 0"),
    ):
        with pytest.raises(ConfigError, match=said):
            DraftModelSizes.read(draft_sizes().options() | wrong, "drafter.toml, [options]")
