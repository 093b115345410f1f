"""A draft model on the part of a long text that matters: what was planted far back is drafted, and little is read."""

from __future__ import annotations

import torch
from contracts.kit import V, reply
from contracts.models import own_decoder, shared_network

from specchat.models.backends.scripted import ScriptedModel

FILLER = [3 + (i * i + i // 7) % 9 for i in range(600)]
FACT = [18, 19, 20, 14, 16, 21, 15, 17, 13, 22]
LONG = [*FILLER[:160], *FACT, *FILLER[160:], *FACT[:3]]
"""A fact far back, and its first words again at the end."""

CHAIN = {"policy": "chain", "controller": "fixed", "width": 1, "depth": 5, "nodes": 5, "max_tokens": 7}


def copying(text):
    """Logits that go on as the text went on after its last two tokens, or else as after its last one."""
    logits = torch.zeros(V)
    for size, strength in ((1, 4.0), (2, 8.0)):
        for end in range(size, len(text) - 1):
            if list(text[end - size : end]) == list(text[len(text) - size :]):
                logits[text[end]] += strength
    return logits


def spoken(**settings):
    draft = ScriptedModel(V, copying, 4096)
    said = reply(ScriptedModel(V, copying, 4096), draft, prompt=LONG, **CHAIN, **settings)
    return said, draft


def test_a_planted_fact_is_retrieved_and_its_words_are_drafted_right():
    said, draft = spoken(
        drafter="retrieved_context", method_options={"retrieved_context.budget": 96, "retrieved_context.chunk": 16}
    )
    assert said.tokens == FACT[3:]
    assert len(said.rounds) == 2, "all five guesses of the first round are right"
    assert draft.counters.rows < 150, "the text has 613 tokens"
    whole, other = spoken(drafter="draft_model")
    assert whole.tokens == said.tokens
    assert other.counters.rows > 600


def test_without_that_part_of_the_text_they_are_drafted_wrong(monkeypatch):
    monkeypatch.setattr(
        "specchat.drafters.retrieved_context.shared_words", lambda text, size, query: [0.0] * (len(text) // size)
    )
    said, _ = spoken(
        drafter="retrieved_context", method_options={"retrieved_context.budget": 96, "retrieved_context.chunk": 16}
    )
    assert said.tokens == FACT[3:]
    assert len(said.rounds) >= 4


def test_a_short_text_is_drafted_for_as_by_draft_model():
    for settings in ({}, {"temperature": 0.8}, {"temperature": 0.8, "rule": "multi_step", "policy": "expansion"}):
        both = []
        for drafter in ("draft_model", "retrieved_context"):
            network = shared_network("llama")
            target, draft = own_decoder(network, 256), own_decoder(network, 256)
            shape = {**CHAIN, "max_tokens": 24, **settings}
            both.append(reply(target, draft, prompt=FILLER[:30], drafter=drafter, **shape).ledger.accepted)
        assert both[0] > 0
        assert both[0] == both[1] or settings.get("rule") == "multi_step"


def test_a_draft_model_with_a_short_context_drafts_for_a_long_chat():
    target, draft = ScriptedModel(V, copying, 4096), ScriptedModel(V, copying, 256)
    options = {"retrieved_context.budget": 128, "retrieved_context.chunk": 16}
    said = reply(target, draft, prompt=LONG, drafter="retrieved_context", method_options=options, **CHAIN)
    assert said.ledger.accepted > 0
    assert reply(target, draft, prompt=LONG, drafter="draft_model", **CHAIN).ledger.drafted == 0


def test_between_two_choices_only_what_is_new_is_read():
    draft = ScriptedModel(V, copying, 4096)
    options = {"retrieved_context.budget": 96, "retrieved_context.chunk": 16, "retrieved_context.refresh": 1000}
    said = reply(ScriptedModel(V, copying, 4096), draft, prompt=LONG, drafter="retrieved_context",
                 method_options=options, **{**CHAIN, "max_tokens": 40})  # fmt: skip
    assert draft.counters.rows <= 96 + 2 * said.ledger.drafted + 2 * len(said.rounds)
