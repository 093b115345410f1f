"""Settings may change between two rounds of a reply: methods leave the text as it is, sampling acts from then on."""

from __future__ import annotations

import itertools
import time

import pytest
from contracts.kit import PROMPT, collect, converse, plain_text, reply, scripted_draft, scripted_target

from specchat.controllers import CONTROLLERS
from specchat.core.sampling import Sampling
from specchat.decoding.reply_events import ReplyEnded, RoundWritten, Stopwatch
from specchat.decoding.speculate import Speculator
from specchat.drafters import DRAFTERS
from specchat.trees import TREE_POLICIES


def test_methods_may_change_between_any_two_rounds():
    plain = plain_text(scripted_target(), 200, Sampling(temperature=0.8))
    methods = zip(*map(itertools.cycle, (DRAFTERS, TREE_POLICIES, CONTROLLERS, (1, 3))), strict=True)
    conversation = converse(scripted_target(), scripted_draft(), temperature=0.8, max_tokens=200)
    tokens, used = [], set()
    for event in conversation.reply(PROMPT, 7):
        if hasattr(event, "round"):
            tokens += event.round.emitted
            drafter, policy, controller, width = next(methods)
            used |= {drafter, policy, controller}
            chosen = {"drafter": drafter, "policy": policy, "controller": controller, "width": width}
            conversation.change(conversation.settings.but({**chosen, "depth": 3, "nodes": 6}))
    assert tokens == plain
    assert used == {*DRAFTERS, *TREE_POLICIES, *CONTROLLERS}


def test_sampling_changes_act_from_the_next_round_on():
    conversation = converse(scripted_target(), temperature=0.8, max_tokens=30, nodes=0)
    tokens: list[int] = []
    for event in conversation.reply(PROMPT, 7):
        if hasattr(event, "round"):
            tokens += event.round.emitted
            if len(tokens) == 10:
                conversation.change(conversation.settings.but({"temperature": 0.0}))
    warm = plain_text(scripted_target(), 10, Sampling(temperature=0.8))
    target = scripted_target()
    assert tokens[:10] == warm
    assert tokens[10:] == reply(target, prompt=[*PROMPT, *warm], max_tokens=20).tokens


def test_a_change_that_is_refused_changes_nothing():
    conversation = converse(scripted_target(), max_tokens=10)
    before = conversation.settings
    for wrong in ({"drafter": "draft_model"}, {"method_options": {"expansion.widths": "x"}}):
        with pytest.raises(Exception, match=r"draft model|widths"):
            conversation.change(conversation.settings.but(wrong))
        assert conversation.settings is before
    assert collect(conversation.reply(PROMPT, 7)).tokens == plain_text(scripted_target(), 10)


def test_getting_ready_after_a_change_is_not_time_of_the_reply(monkeypatch):
    slow_s, start = 0.5, Speculator.start
    conversation = converse(scripted_target(), scripted_draft(), drafter="prompt_lookup", max_tokens=40)
    watch, at_s, started = Stopwatch(), [], []

    def starting(self: Speculator, *given: object) -> None:
        started.append(self.drafter)
        time.sleep(slow_s if len(started) > 1 else 0.0)
        start(self, *given)

    monkeypatch.setattr(Speculator, "start", starting)
    begun = time.perf_counter()
    for event in conversation.reply(PROMPT, 7, watch=watch):
        if isinstance(event, RoundWritten | ReplyEnded):
            at_s.append(event.at_s)
        if len(at_s) == 3:
            conversation.change(conversation.settings.but({"drafter": "draft_model"}))
    assert len(started) == 2
    assert time.perf_counter() - begun - at_s[-1] >= slow_s
    assert at_s == sorted(at_s)
