"""Settings may change between two rounds of a reply: methods leave the text as it is, sampling acts from then on."""

from __future__ import annotations

import itertools

import pytest
from contracts.kit import PROMPT, collect, converse, plain_text, reply, scripted_draft, scripted_target

from specchat.controllers import CONTROLLERS
from specchat.core.sampling import Sampling
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
