"""Forty prompts under JSON schemas: every reply of a real model parses and fits, and is plain decoding's."""

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


@pytest.fixture(scope="module")
def conversations():
    """One that speculates, and one that does not, over the same weights."""
    name = load_catalog().pair("smol").target
    path = fetched(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECCHAT_HOME", str(HOME))
        loaded = load_model(load_catalog().model(name), path, torch.device("cpu"), "auto")
    vocabulary = TransformersVocabulary(loaded.tokenizer, loaded.eos_ids)
    model = loaded.model
    return [
        Conversation(one, None, vocabulary, Settings().but({"max_tokens": 400, "temperature": 0.8, **how}))
        for one, how in ((model, SPECULATING), (model.with_new_cache(), {"controller": "off"}))
    ]


@pytest.mark.parametrize("question", QUESTIONS, ids=[question.question_id for question in QUESTIONS])
def test_every_reply_is_json_that_fits_and_plain_decodings_own(conversations, question):
    replies = []
    for conversation in conversations:
        prompt = conversation.encode([{"role": "user", "content": question.turns[0]}])
        constraint = conversation.compile(ConstraintSource("json_schema", question.json_schema))
        replies.append(collect(conversation.reply(prompt, 1, constraint=constraint)))
    guessed, plain = replies
    assert guessed.ended.stop is Stop.END
    jsonschema.validate(json.loads(guessed.text), json.loads(question.json_schema))
    assert guessed.tokens == plain.tokens
    assert guessed.ledger.accepted > 0
