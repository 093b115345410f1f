"""Masks learn through their target, which stays as it is."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from contracts.kit import context_for, fixed_speculator, speak
from safetensors.torch import load_file, save_file
from test_learning import request
from training_kit import REPLY, USER, V, own_texts, subject, target, weights_of

from specchat.config import data_dir
from specchat.config.trained_drafters import WEIGHTS, read_drafter, write_drafter
from specchat.core.budget import Budget
from specchat.drafters import DRAFTERS
from specchat.drafters.parts import PairResources, Parts
from specchat.errors import ConfigError, ModelError, WeightsError
from specchat.models.draft_heads import FAMILIES, methods
from specchat.models.draft_heads.head import STEPS
from specchat.models.draft_heads.loading import new_network, save_weights
from specchat.models.draft_heads.masks import mask_rows
from specchat.training import job
from specchat.training import texts as text_writing
from specchat.training.corpus import Corpus, shared_with
from specchat.training.fitting import Fitting, Schedule
from specchat.training.job import Job
from specchat.training.losses import columns_of
from specchat.training.mask_learning import FrozenTarget, MaskLearning
from specchat.training.states import StateReading, tapped_layers

pytestmark = pytest.mark.parametrize("method", methods("masks"))


@pytest.fixture(scope="module")
def model():
    return target(spread=0.12)


@pytest.fixture(scope="module")
def corpus(model, tmp_path_factory):
    shard = StateReading(model, "ab" * 32, tmp_path_factory.mktemp("states")).shard(own_texts(model))
    return Corpus([shard], STEPS, reads_back=True)


def masks_for(method, model, corpus):
    sizes = FAMILIES[method].load().sizes_for(model.network.shape, tapped_layers(model.layers))
    return new_network(method, sizes, shared_with(model, corpus, V), torch.Generator().manual_seed(0))


def learning_through(model, dtype=torch.float32):
    return MaskLearning(FrozenTarget(model.network.shape, weights_of(model), dtype, torch.device("cpu")))


def fitted(method, model, corpus, folder, tokens):
    learning = learning_through(model)
    return Fitting(
        masks_for(method, model, corpus), corpus, Schedule(tokens, 0.0, 2e-2, 1000), folder, V, STEPS, 4, 0,
        {"method": method}, loss=learning.loss, accepted=learning.acceptance,
    )  # fmt: skip


def test_the_gradient_is_that_of_finite_differences(method, model, corpus):
    network, learning = masks_for(method, model, corpus), learning_through(model)
    batch, _ = next(corpus.epoch(0, 0, 2))
    columns = columns_of(network.shared.tokens, V)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))

    def loss():
        return learning.loss(network, batch, columns, STEPS, torch.Generator().manual_seed(0))[0]

    def number():
        with torch.no_grad():
            return float(loss())

    loss().backward()
    for name, parameter in list(network.named_parameters())[:: max(1, len(list(network.parameters())) // 6)]:
        place, step = int(parameter.grad.abs().argmax()), 3e-3
        found, flat = float(parameter.grad.flatten()[place]), parameter.data.view(-1)
        flat[place] += step
        above = number()
        flat[place] -= 2 * step
        below = number()
        flat[place] += step
        assert found == pytest.approx((above - below) / (2 * step), rel=0.05, abs=1e-3), name


def drafted(method, model, network, folder):
    """Replies to some of the prompts, drafted by a network from its file; and the rounds they took."""
    folder.mkdir()
    save_weights(network, folder / WEIGHTS)
    trained = write_drafter(
        folder, method=method, target="tiny", target_sha256="ab" * 32, licence="Apache-2.0",
        options=network.sizes.options(), data={}, figures={},
    )  # fmt: skip
    texts, rounds = [], 0
    for index in range(5):
        drafting = DRAFTERS[method]
        parts = Parts(model, trained=trained, resources=PairResources(make_masks=mask_rows))
        drafter = drafting.load()(drafting.make_options({"rows": 12}), parts)
        context = context_for(vocab_size=V, prompt=[USER, 3 + index % 7, 3 + index // 7, 9, REPLY])
        speculator = fixed_speculator(model, drafter, "chain", Budget(3, 3, 1))
        text, own = speak(speculator, 24, context)
        texts.append(text)
        rounds += len(own)
    return texts, rounds


def test_trained_masks_accept_more_than_untrained_ones(method, tmp_path):
    """On texts that they learnt; the text is what plain decoding writes."""
    model = target(forgetful=True)
    texts = own_texts(model, count=6)
    corpus = Corpus([StateReading(model, "ab" * 32, tmp_path).shard(texts)], STEPS, reads_back=True)
    fit = fitted(method, model, corpus, tmp_path, 1200 if method == "mtp" else 3000)
    if not fit.network.factors():
        pytest.skip("embeddings alone learn no texts by heart")
    untrained, before = drafted(method, model, fit.network, tmp_path / "untrained")
    fit.run(lambda standing: None)
    trained, after = drafted(method, model, fit.network, tmp_path / "trained")
    assert trained == untrained == [text.reply for text in texts[:5]]
    assert after < 0.9 * before


def test_trained_masks_are_nearer_to_what_the_target_says_than_untrained_and_shuffled_ones(
    method, model, corpus, tmp_path
):
    fit = fitted(method, model, corpus, tmp_path, 2000)
    columns, learning = columns_of(fit.network.shared.tokens, V), learning_through(model)
    [batch] = corpus.unseen(16)

    @torch.no_grad()
    def distance(network):
        return float(learning.loss(network, batch, columns, STEPS, torch.Generator().manual_seed(0))[0])

    before = distance(fit.network)
    fit.run(lambda standing: None)
    after = distance(fit.network)
    assert after < 0.9 * before
    made = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in fit.network.parameters():
            shuffled = parameter.flatten()[torch.randperm(parameter.numel(), generator=made)]
            parameter.copy_(shuffled.view_as(parameter))
    assert distance(fit.network) > max(1.15 * after, 0.92 * before)


def test_what_was_measured_is_what_riders_of_the_target_guess(method, model, corpus, tmp_path):
    """The share of first guesses that are right, once as training counts it and once by the target's own passes."""
    from contracts.pass_requests import requested

    from specchat.core.request import Adapter, ExtraRow
    from specchat.core.tree import TokenTree

    fit = fitted(method, model, corpus, tmp_path, 1200)
    fit.run(lambda standing: None)
    network, columns = fit.network, columns_of(fit.network.shared.tokens, V)
    [batch] = corpus.unseen(16)
    found = learning_through(model).acceptance(network, batch, columns, 1)
    factors = network.factors()
    adapter = Adapter({place: (down.detach(), up.detach()) for place, (down, up) in factors.items()})
    extra_row = ExtraRow(0, network.embeddings[0].detach(), adapter=adapter if factors else None, entry=network.entry())
    right = count = 0
    for row, tokens in enumerate(batch.tokens.tolist()):
        model.prefill(())
        for place in range(int(batch.first[row]), int(batch.last[row])):
            model.prefill(tokens[:place])
            reading = model.read(TokenTree(tokens[place], V).freeze(), request=requested([extra_row]))
            right, count = right + (int(reading.extra_row_logits[0].argmax()) == tokens[place + 2]), count + 1
    assert found.by_depth[0] == pytest.approx(right / count, abs=0.12)


def test_a_job_makes_a_drafter_and_goes_on_after_an_interrupt(method, tmp_path, monkeypatch):
    monkeypatch.setattr(text_writing, "REPLY_TOKENS", 12)
    monkeypatch.setitem(FAMILIES, method, dataclasses.replace(FAMILIES[method], epochs=1.0))
    monkeypatch.setattr(job, "_MEASUREMENTS", 3)

    def interrupt(stage):
        if stage.name == "learning" and stage.done > 0.5:
            raise KeyboardInterrupt

    tiny = subject()
    with pytest.raises(KeyboardInterrupt):
        Job(request(tmp_path, drafter=method), tiny, interrupt).run()
    early = read_drafter(data_dir() / "drafters" / "mine", (method,))
    trained = Job(request(tmp_path, drafter=method, resume=True), tiny, lambda stage: None).run()
    assert trained.figures["tokens_seen"] > early.figures["tokens_seen"] > 0
    masks = mask_rows(tiny.model, trained)
    assert len(masks.embeddings) == 3
    assert (masks.adapter is None) == (method == "prompt_tokens")
    assert (masks.entry is None) == (method != "speculative_streaming")
    assert trained.size < 64 << 10 or method == "mtp"


def test_weights_that_fit_no_target_or_are_none_are_refused(method, tmp_path, monkeypatch):
    monkeypatch.setattr(text_writing, "REPLY_TOKENS", 12)
    tiny = subject()
    trained = Job(request(tmp_path, drafter=method), tiny, lambda stage: None).run()

    class Wider:
        hidden_size, layers, device = 128, 4, torch.device("cpu")

    with pytest.raises(ModelError, match="masks of 64 numbers"):
        mask_rows(Wider(), trained)
    if method == "speculative_streaming":
        with pytest.raises(ConfigError, match=r"first = 4 is not one of layers = 4") as refused:
            mask_rows(tiny.model, dataclasses.replace(trained, options=trained.options | {"first": 4}))
        assert "\n" not in str(refused.value)
    tensors = load_file(trained.weights)
    damages = {
        "not finite": {"embeddings.1": torch.full((64,), torch.nan).bfloat16()},
        r"is \(65,\), not \(64,\)": {"embeddings.1": torch.zeros(65).bfloat16()},
        "is not asked for": {"embeddings.3": torch.zeros(64).bfloat16()},
    }
    for said, changed in damages.items():
        save_file(tensors | changed, trained.weights)
        with pytest.raises(WeightsError, match=said):
            mask_rows(tiny.model, trained)
    save_file({name: tensor for name, tensor in tensors.items() if name != "embeddings.0"}, trained.weights)
    with pytest.raises(WeightsError, match=r"has no tensor embeddings\.0"):
        mask_rows(tiny.model, trained)
