"""The trained drafter that comes with specchat: the target accepts its guesses, and the text stays the target's."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from contracts.kit import collect
from real_weights import HOME, fetched
from safetensors.torch import load_file, save_file

from specchat.config import load_catalog
from specchat.config.prompt_files import PromptFiles
from specchat.config.trained_drafters import TrainedDrafters
from specchat.decoding.conversation import Conversation
from specchat.engine.server.pair_loading import Loader
from specchat.models.decoder.prompt_cache import KeptTexts, PromptCache
from specchat.settings import Settings

pytestmark = pytest.mark.real

QUESTIONS = (
    "Why do leaves change colour in autumn?",
    "Write a short letter that thanks a neighbour for watering the plants.",
    "How do I plan a week of meals on a small budget?",
)
CHAIN = {"drafter": "hydra", "policy": "chain", "controller": "fixed", "nodes": 4, "depth": 4, "max_tokens": 24}


@pytest.fixture(scope="module")
def pair():
    fetched("smollm2-135m-instruct")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECCHAT_HOME", str(HOME))
        yield Loader(load_catalog(), lambda event: None, lambda: False).load(Settings(pair="smol"))


def replies(pair, trained, **settings):
    """The tokens of every reply, and τ over all of them."""
    resources = dataclasses.replace(pair.resources, trained=trained)
    said = []
    for question in QUESTIONS:
        prompt = pair.vocabulary.encode_chat([{"role": "user", "content": question}])
        conversation = Conversation(
            pair.target.model, None, pair.vocabulary, Settings().but(settings), resources=resources
        )
        pair.target.model.prefill(())
        said.append(collect(conversation.reply(prompt, 1)))
    rounds = sum(reply.ended.ledger.rounds for reply in said)
    return [reply.tokens for reply in said], sum(len(reply.tokens) for reply in said) / rounds


def test_the_shipped_drafter_is_accepted_and_a_shuffled_one_is_not(pair, tmp_path):
    shipped = next(one for one in pair.resources.trained.fitting if one.name == "smol-hydra")
    plain, _ = replies(pair, TrainedDrafters(), controller="off", max_tokens=24)
    texts, tau = replies(pair, TrainedDrafters(fitting=(shipped,)), **CHAIN)
    assert texts == plain
    assert tau > 1.4, "1.5 to 1.6 on questions of benches"
    weights = load_file(shipped.weights)
    noise = torch.Generator().manual_seed(0)
    for name, tensor in weights.items():
        if tensor.dtype in (torch.bfloat16, torch.int8):
            weights[name] = tensor.flatten()[torch.randperm(tensor.numel(), generator=noise)].view(tensor.shape)
    save_file(weights, tmp_path / shipped.weights.name)
    shuffled = dataclasses.replace(shipped, folder=tmp_path)
    texts, tau = replies(pair, TrainedDrafters(fitting=(shuffled,)), **CHAIN)
    assert texts == plain
    assert tau < 1.1


def test_what_was_read_comes_back_with_the_states_that_the_drafter_needs(pair, tmp_path):
    """From the disk, and by turns with another text: the same text, guessed as well, and nothing is read twice."""
    text = "Rain falls on the hills, and the river carries it down to the sea again. " * 12
    prompts = [pair.vocabulary.encode_chat([{"role": "user", "content": q + text}]) for q in QUESTIONS[:2]]
    target = pair.target.model

    def conversation(cache):
        target.kept = None
        target.prefill(())
        target.keep_texts_in(KeptTexts(cache, "smol"))
        return Conversation(target, None, pair.vocabulary, Settings().but(CHAIN), resources=pair.resources)

    files = PromptFiles(tmp_path / "prompts", 1 << 30)
    chat = conversation(PromptCache(1 << 30, files))
    first = [collect(chat.reply(prompt, 1)) for prompt in prompts]
    again = [collect(chat.reply(prompt, 1)) for prompt in prompts]
    assert chat.target.kept.cache.save("chat", chat.kept_texts(), lambda: False)
    reopened = collect(conversation(PromptCache(0, files)).reply(prompts[1], 1))
    target.kept = None
    assert [reply.tokens for reply in again] == [reply.tokens for reply in first]
    assert reopened.tokens == first[1].tokens
    assert len(reopened.rounds) <= len(first[1].rounds) + 1, "its guesses are as good"
    for reply in (*again, reopened):
        assert reply.begun.reused_tokens >= reply.begun.prompt_tokens - 65
