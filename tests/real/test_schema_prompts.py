"""Forty prompts under JSON schemas: every reply of a real model parses and fits, and is the target's own."""

from __future__ import annotations

import json

import jsonschema
import pytest
import torch
from contracts.kit import collect
from real_weights import HOME, fetched

from specchat.bench.workloads import find_workload
from specchat.config import load_catalog
from specchat.core.constraint import ConstraintSource
from specchat.decoding.conversation import Conversation
from specchat.decoding.emission import Stop
from specchat.decoding.vocabulary import TransformersVocabulary
from specchat.models.model_loading import load_model
from specchat.settings import Settings

pytestmark = pytest.mark.real


QUESTIONS = find_workload("schemas").questions

SPECULATING = {"drafter": "suffix", "policy": "best_first", "controller": "fixed", "width": 2, "depth": 6, "nodes": 10}
PLAIN = {"controller": "off"}
GUIDED = {"drafter": "prompt_lookup", "policy": "chain", "controller": "fixed", "nodes": 24, "depth": 24, "width": 1}
"""With a reply as its reference, it is written again in a few passes, and a token that differs ends a path."""

PLAIN_EVERY = 4
"""One question in so many is answered without guesses too; the others' replies are written again along them."""


@pytest.fixture(scope="module")
def conversations():
    """One that speculates, one that does not, and one that follows a reference, over the same weights."""
    name = load_catalog().pair("smol").target
    path = fetched(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECCHAT_HOME", str(HOME))
        loaded = load_model(load_catalog().model(name), path, torch.device("cpu"), "auto")
    vocabulary = TransformersVocabulary(loaded.tokenizer, loaded.eos_ids)
    model = loaded.model
    return [
        Conversation(one, None, vocabulary, Settings().but({"max_tokens": 400, "temperature": 0.8, **how}))
        for one, how in ((model, SPECULATING), (model.with_new_cache(), PLAIN), (model.with_new_cache(), GUIDED))
    ]


@pytest.mark.parametrize("number", range(len(QUESTIONS)))
def test_every_reply_is_json_that_fits_and_the_targets_own(conversations, number):
    question = QUESTIONS[number]
    speculating, plain, guided = conversations

    def said(conversation, **how):
        prompt = conversation.encode([{"role": "user", "content": question.turns[0]}])
        constraint = conversation.compile(ConstraintSource("json_schema", question.json_schema))
        return collect(conversation.reply(prompt, 1, constraint=constraint, **how))

    guessed = said(speculating)
    assert guessed.ended.stop is Stop.END
    jsonschema.validate(json.loads(guessed.text), json.loads(question.json_schema))
    assert guessed.ledger.accepted > 0
    again = said(guided, reference=guessed.tokens) if number % PLAIN_EVERY else said(plain)
    assert again.tokens == guessed.tokens
