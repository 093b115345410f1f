"""Where the target decided: what its head makes of the states after its layers, without a change of text or figures."""

from __future__ import annotations

import time

import pytest
from contracts.kit import PROMPT, Letters, converse, scripted_target
from contracts.models import LAYERS, MODELS, V
from rows import each_row

from specchat.decoding import conversation as conversations
from specchat.decoding.reply_events import ReplyEnded, RoundWritten
from specchat.errors import CombinationError

NETWORKS = [
    (name, family)
    for name, family in (("reference", "llama"), ("decoder", "gemma3_text"), ("native", "llama"))
    if name in MODELS
]


def rounds(target, **settings) -> list[RoundWritten]:
    conversation = converse(target, vocabulary=Letters(target.vocab_size), max_tokens=12, nodes=6, **settings)
    return [event for event in conversation.reply(PROMPT, 7) if isinstance(event, RoundWritten)]


def tokens(written: list[RoundWritten]) -> list[int]:
    return [token for one in written for token in one.round.emitted]


@each_row(("name", "family"), NETWORKS)
def test_each_kept_token_says_what_was_likeliest_after_every_layer_and_the_text_stays_the_same(name, family):
    subject = MODELS[name](family, 256)
    for warmth in (0.0, 0.8):
        plain = rounds(subject.fresh(), temperature=warmth)
        seen = rounds(subject.fresh(), temperature=warmth, lens=True)
        assert tokens(seen) == tokens(plain), warmth
        assert not any(one.layers for one in plain)
    text, checked = list(PROMPT), 0
    for one in seen:
        assert len(one.layers) == len(one.round.emitted)
        for token, decided in zip(one.round.emitted, one.layers, strict=True):
            states = subject.states(text)
            heads = [int(subject.model.head(state[None])[0].argmax()) for state in states[:-1]]
            by_layer = [*heads, int(subject.truth(text).argmax())]
            changes = [(at, top) for at, top in enumerate(by_layer, 1) if at == 1 or top != by_layer[at - 2]]
            checked += len(by_layer) > 1 and [(c.layer, c.token) for c in decided.choices] == changes
            assert decided.layers == len(by_layer) == LAYERS[family]
            assert decided.choices[0].layer == 1
            text.append(token)
    assert checked == len(text) - len(PROMPT) if name != "native" else checked > 6, "8-bit states have near-ties"


def test_the_time_it_takes_is_in_no_figure(monkeypatch):
    def slowly(*given):
        time.sleep(0.05)
        return looked(*given)

    looked = conversations.layer_choices
    monkeypatch.setattr(conversations, "layer_choices", slowly)
    conversation = converse(scripted_target(), max_tokens=20, lens=True)
    began = time.perf_counter()
    *_, last, ended = conversation.reply(PROMPT, 7)
    assert isinstance(ended, ReplyEnded)
    assert last.layers[0].choices[-1].layer == 1, "the scripted model has one layer"
    slept = 0.05 * ended.ledger.rounds
    assert time.perf_counter() - began >= slept
    assert ended.at_s < slept / 2
    assert ended.ledger.draft_s + ended.ledger.verify_s < slept / 2


def test_replies_with_settings_of_their_own_do_not_wait_for_it():
    conversation = converse(scripted_target(), max_tokens=5, lens=True)
    written = [one for one in conversation.reply(PROMPT, 7, own={"seed": 3}) if isinstance(one, RoundWritten)]
    assert written
    assert not any(one.layers for one in written)


def test_a_model_whose_head_takes_its_own_states_alone_refuses_in_one_line():
    target = MODELS["llama.cpp"]("llama", 256).model
    with pytest.raises(CombinationError, match="lens = true needs the head on the states of early layers"):
        converse(target, vocabulary=Letters(V), lens=True)
    conversation = converse(target, vocabulary=Letters(V))
    with pytest.raises(CombinationError, match="nearest that works: backend = own"):
        conversation.change(conversation.settings.but({"lens": True}))
    assert not conversation.settings.lens


def test_more_layers_than_messages_speak_of_are_refused(monkeypatch):
    target = scripted_target()
    conversation = converse(target)
    monkeypatch.setattr(target, "layers", 2000)
    with pytest.raises(CombinationError, match="up to 1024 layers"):
        conversation.change(conversation.settings.but({"lens": True}))
