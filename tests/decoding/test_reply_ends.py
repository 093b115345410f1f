"""A reply that ends inside an accepted span: text, cache and counts end at the same token, and the chat goes on."""

from __future__ import annotations

import pytest
from contracts.covering import covering, named
from contracts.kit import (
    PROMPT,
    Letters,
    V,
    collect,
    converse,
    plain_text,
    reply,
    scripted_draft,
    scripted_target,
    target_says,
)
from contracts.models import MODELS
from contracts.models import V as NETWORK_V
from rows import each_row

from specchat.core.round import Reason
from specchat.core.sampling import Sampling
from specchat.core.tree import ROOT
from specchat.decoding.emission import Stop
from specchat.errors import UsageError
from specchat.models.backends.scripted import ScriptedModel

WARM = {"temperature": 0.8}
SPAN = {"drafter": "draft_model", "policy": "chain", "depth": 5, "nodes": 5, "width": 1, "temperature": 0.8}
"""With the target as its own draft model, every round of these accepts 5 tokens and emits 6."""

TRUTH = plain_text(scripted_target(), 40, Sampling(**WARM))

OFFSETS = range(1, 15)


def check_end(conversation, said, kept: int, stop: Stop) -> None:
    """Everything ends after `kept` tokens; the next reply builds on exactly that."""
    assert said.ended.stop is stop
    assert said.tokens == TRUTH[:kept]
    assert said.ledger.tokens == kept
    assert said.ledger.accepted == sum(len(round.verdict.path) for round in said.rounds)
    last = said.rounds[-1]
    assert last.verdict.emitted == last.emitted
    assert last.verdict.reasons.count(Reason.CUT) == 5 - last.accepted
    text = [*PROMPT, *said.tokens]
    held = conversation.target.cached([*text, *range(9)])
    assert len(text) - 1 <= held <= len(text), "all but the last token, which was perhaps never read, and no more"
    follow_up = [*text, 4, 9, 2]
    again = collect(conversation.reply(follow_up, 11))
    fresh = reply(scripted_target(), prompt=follow_up, seed=11, nodes=0, **WARM, max_tokens=len(again.tokens))
    assert again.tokens == fresh.tokens
    assert again.begun.reused_tokens == held


def knowing(**settings):
    """A conversation whose drafts are always right."""
    return converse(scripted_target(), scripted_target(), **(SPAN | settings))


@pytest.mark.parametrize("kept", OFFSETS)
def test_a_length_limit_may_fall_on_any_token_of_a_span(kept):
    conversation = knowing(max_tokens=kept)
    said = collect(conversation.reply(PROMPT, 7))
    check_end(conversation, said, kept, Stop.LENGTH)
    assert said.text == "".join(chr(ord("A") + token) for token in TRUTH[:kept])


def vocabulary_that_ends_at(kept: int) -> Letters:
    return Letters(V, eos_ids={TRUTH[kept - 1]})


ENDS = [kept for kept in OFFSETS if TRUTH[kept - 1] not in TRUTH[: kept - 1]]


@pytest.mark.parametrize("kept", ENDS)
def test_the_end_of_sequence_may_be_any_token_of_a_span(kept):
    conversation = knowing(vocabulary=vocabulary_that_ends_at(kept), max_tokens=40)
    said = collect(conversation.reply(PROMPT, 7))
    check_end(conversation, said, kept, Stop.END)
    assert said.text == "".join(chr(ord("A") + token) for token in TRUTH[: kept - 1]), "the end itself is no text"


@each_row("kept", ENDS)
@each_row("length", [1, 2, 3])
def test_a_stop_string_may_end_in_any_token_of_a_span(kept, length):
    text = "".join(chr(ord("A") + token) for token in TRUTH)
    stop = text[max(0, kept - length) : kept]
    conversation = knowing(stop=[stop], max_tokens=40)
    said = collect(conversation.reply(PROMPT, 7))
    check_end(conversation, said, kept, Stop.STOP)
    assert said.ended.stop_string == stop
    assert said.text == text[: kept - len(stop)]


def test_a_stop_string_inside_a_token_ends_the_text_there_and_the_reply_with_that_token():
    texts = {TRUTH[2]: b"one STOP two"}
    conversation = knowing(vocabulary=Letters(V, texts=texts), stop=["STOP"], max_tokens=40)
    said = collect(conversation.reply(PROMPT, 7))
    assert said.tokens == TRUTH[:3]
    assert said.text.endswith("one ")


def test_half_a_stop_string_at_the_end_is_text_after_all():
    text = "".join(chr(ord("A") + token) for token in TRUTH[:8])
    conversation = knowing(stop=[text[6:8] + "never"], max_tokens=8)
    said = collect(conversation.reply(PROMPT, 7))
    assert said.text == text
    assert said.ended.tail == text[6:8]


@pytest.mark.parametrize("room", range(1, 9))
def test_a_full_context_ends_the_reply(room):
    says = target_says()
    target, draft = (ScriptedModel(V, says, len(PROMPT) + room) for _ in range(2))
    said = collect(converse(target, draft, **SPAN).reply(PROMPT, 7))
    assert said.ended.stop is Stop.CONTEXT
    assert said.tokens == TRUTH[:room]


def test_a_prompt_that_fills_the_context_is_refused():
    target = ScriptedModel(V, target_says(), len(PROMPT))
    with pytest.raises(UsageError, match=r"8 tokens and the context of this model holds 8"):
        collect(converse(target).reply(PROMPT))


def test_an_empty_prompt_is_refused():
    with pytest.raises(UsageError, match="the prompt is empty"):
        collect(converse(scripted_target()).reply([]))


@pytest.mark.parametrize("after", range(4))
def test_cancelling_keeps_what_was_said_and_the_chat_goes_on(after):
    conversation = knowing(max_tokens=40)
    asked = iter([False] * after)
    said = collect(conversation.reply(PROMPT, 7, lambda: next(asked, True)))
    assert said.ended.stop is Stop.CANCELLED
    assert said.tokens == TRUTH[: 6 * after]
    again = collect(conversation.reply(PROMPT, 7))
    assert again.tokens == TRUTH


def test_cancelling_while_the_prompt_is_read_keeps_what_was_read():
    subject = MODELS["reference"]("llama", 2048)
    conversation = converse(subject.model, vocabulary=Letters(NETWORK_V), max_tokens=5)
    prompt = [(7 * i) % NETWORK_V for i in range(600)]
    said = collect(conversation.reply(prompt, 1, lambda: True))
    assert said.ended.stop is Stop.CANCELLED
    assert said.tokens == []
    held = subject.model.cached(prompt)
    assert 0 < held < 599
    again = collect(conversation.reply(prompt, 1))
    assert again.begun.reused_tokens == held
    fresh = converse(MODELS["reference"]("llama", 2048).model, vocabulary=Letters(NETWORK_V), max_tokens=5)
    assert again.tokens == collect(fresh.reply(prompt, 1)).tokens


def test_a_reply_that_is_not_read_to_its_end_does_no_harm():
    conversation = knowing(max_tokens=40)
    half = conversation.reply(PROMPT, 7)
    next(half)
    next(half)
    half.close()
    assert collect(conversation.reply(PROMPT, 7)).tokens == TRUTH


def test_a_shorter_limit_ends_a_running_reply_at_the_next_token():
    conversation = knowing(max_tokens=40)
    tokens: list[int] = []
    for event in conversation.reply(PROMPT, 7):
        if hasattr(event, "round"):
            tokens += event.round.emitted
            conversation.change(conversation.settings.but({"max_tokens": 3}))
    assert tokens == TRUTH[:7]


@each_row(
    ("name", "family", "kept"),
    covering(
        named(name for name in MODELS if name != "scripted"),
        named(["llama", "qwen2", "mistral"]),
        [pytest.param(kept, id=str(kept)) for kept in (1, 4, 6, 7, 9, 12)],
    ),
)
def test_a_network_goes_on_after_a_cut_as_if_the_rest_had_never_been_drafted(name, family, kept):
    make = lambda: MODELS[name](family, 256).model  # noqa: E731
    target = make()
    settings = {"vocabulary": Letters(NETWORK_V), **SPAN}
    first = collect(converse(target, make(), **settings, max_tokens=kept).reply(PROMPT, 7))
    text = [*PROMPT, *first.tokens, 8, 15]
    again = collect(converse(target, make(), **settings, max_tokens=10).reply(text, 8))
    assert again.begun.reused_tokens >= len(PROMPT) + kept - 1
    plain = converse(make(), vocabulary=Letters(NETWORK_V), nodes=0, max_tokens=10, temperature=0.8)
    assert again.tokens == collect(plain.reply(text, 8)).tokens


def test_the_ledger_adds_up():
    said = reply(scripted_target(), scripted_draft(), **(SPAN | {"policy": "expansion", "width": 3, "nodes": 9}))
    ledger = said.ledger
    bonuses = sum(round.verdict.bonus is not None for round in said.rounds)
    assert ledger.tokens == len(said.tokens) == ledger.accepted + bonuses
    assert ledger.rounds == len(said.rounds)
    assert ledger.drafted == sum(round.tree.drafted for round in said.rounds)
    assert ledger.acceptance_length == ledger.tokens / ledger.rounds
    assert ledger.acceptance_rate == ledger.accepted / ledger.drafted
    assert sum(ledger.accepted_by_depth) == ledger.accepted
    depths, lengths = [max(r.tree.depths) for r in said.rounds], [r.accepted for r in said.rounds]
    assert ledger.offered_by_depth == [sum(d > below for d in depths) for below in range(max(depths))]
    assert ledger.accepted_by_depth == [sum(n > below for n in lengths) for below in range(max(lengths))]
    assert ledger.draft_passes == sum(round.draft_passes for round in said.rounds) > 0
    assert [round.index for round in said.rounds] == list(range(ledger.rounds))
    assert all(round.tree.tokens[ROOT] == ([*PROMPT, *said.tokens])[round.start - 1] for round in said.rounds)


def test_another_temperature_keeps_the_parts_and_what_they_have_learnt():
    conversation = converse(scripted_target(), drafter="prompt_lookup", controller="goodput", max_tokens=10)
    collect(conversation.reply(PROMPT, 1))
    before = conversation.speculator
    conversation.change(conversation.settings.but({"temperature": 0.9, "max_tokens": 12, "stop": ["Z"]}))
    assert len(collect(conversation.reply(PROMPT, 1)).tokens) == 12
    assert conversation.speculator is before
    conversation.change(conversation.settings.but({"width": 3}))
    collect(conversation.reply(PROMPT, 1))
    assert conversation.speculator is not before
