"""A real model: what it says is what transformers' own `generate` says, with and without speculation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from contracts.kit import collect
from real_weights import HOME, fetched

from specchat.config import load_catalog
from specchat.decoding.conversation import Conversation
from specchat.decoding.emission import Detokenizer, Stop
from specchat.decoding.vocabulary import TransformersVocabulary
from specchat.models.model_loading import Loaded, load_model
from specchat.settings import Settings

pytestmark = pytest.mark.real

REFERENCE = json.loads(Path(__file__).with_name("reference.json").read_text())
REPLIES = [pytest.param(entry, id=entry["prompt"][:24]) for entry in REFERENCE["replies"]]

SPECULATING = {"drafter": "prompt_lookup", "policy": "expansion", "width": 2, "depth": 5, "nodes": 8}
GUIDED = {"drafter": "prompt_lookup", "policy": "chain", "nodes": 64, "depth": 64, "width": 1}
"""With the recorded reply as its reference, a whole reply takes a few passes, and a token that differs ends a path."""

PLAIN = {"controller": "off"}
TOKENS = 10
"""Of 64 that are recorded, where passes read few tokens: one in float32 takes 60 ms."""


@pytest.fixture(scope="session")
def loaded() -> Loaded:
    """The model in float32."""
    path = fetched(REFERENCE["model"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECCHAT_HOME", str(HOME))
        return load_model(load_catalog().model(REFERENCE["model"]), path, torch.device("cpu"), "float32")


@pytest.fixture(scope="session")
def vocabulary(loaded: Loaded) -> TransformersVocabulary:
    return TransformersVocabulary(loaded.tokenizer, loaded.eos_ids)


def reply(loaded, vocabulary, prompt_tokens, seed=1, reference=(), **settings):
    conversation = Conversation(loaded.model, None, vocabulary, Settings().but(settings))
    return collect(conversation.reply(prompt_tokens, seed, reference=reference))


def test_the_same_tokens_end_a_reply(loaded):
    assert sorted(loaded.eos_ids) == REFERENCE["ends"]


@pytest.mark.parametrize("entry", REPLIES)
def test_greedy_says_what_transformers_generate_says(loaded, vocabulary, entry):
    assert vocabulary.encode_chat([{"role": "user", "content": entry["prompt"]}]) == entry["prompt_tokens"]
    recorded = entry["reply_tokens"]
    said = reply(loaded, vocabulary, entry["prompt_tokens"], reference=recorded, max_tokens=64, **GUIDED)
    assert said.tokens == recorded
    assert said.ended.stop is (Stop.LENGTH if len(recorded) == 64 else Stop.END)
    assert said.text == loaded.tokenizer.decode(said.tokens, skip_special_tokens=True)


@pytest.mark.parametrize(("number", "how"), [(3, PLAIN), (4, SPECULATING), (8, SPECULATING)])
def test_guesses_from_the_text_and_none_say_the_same(loaded, vocabulary, number, how):
    entry = REFERENCE["replies"][number]
    said = reply(loaded, vocabulary, entry["prompt_tokens"], max_tokens=TOKENS, **how)
    assert said.tokens == entry["reply_tokens"][:TOKENS]
    assert (said.ledger.drafted > 0) is (how is SPECULATING)
    if number == 8:
        assert said.ledger.accepted > 0


def test_the_same_seed_says_the_same_with_speculation_on_and_off(loaded, vocabulary):
    sampling = {"temperature": 0.8, "top_p": 0.95, "max_tokens": TOKENS}
    prompt = REFERENCE["replies"][8]["prompt_tokens"]
    texts = [reply(loaded, vocabulary, prompt, 11, **sampling, **how) for how in (SPECULATING, PLAIN)]
    assert texts[0].tokens == texts[1].tokens
    assert texts[0].ledger.drafted > 0


@pytest.mark.parametrize("entry", REPLIES)
def test_real_replies_come_in_whole_characters(loaded, vocabulary, entry):
    detokenizer = Detokenizer(vocabulary)
    pieces = [*(detokenizer.add(token) for token in entry["reply_tokens"]), detokenizer.finish()]
    whole = loaded.tokenizer.decode(entry["reply_tokens"], skip_special_tokens=True)
    assert "".join(pieces) == whole
    if "\ufffd" not in whole:
        assert all("\ufffd" not in piece for piece in pieces)
