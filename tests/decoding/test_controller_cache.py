"""How long controllers live: across changes of settings and conversations, until costs are measured anew."""

from __future__ import annotations

from contracts.kit import PROMPT, collect, converse, scripted_target

from specchat.core.costs import Costs
from specchat.decoding.kept_parts import KEPT_CONTROLLERS, ControllerCache

LOOKED_UP = {"drafter": "prompt_lookup", "controller": "goodput", "nodes": 4, "depth": 4, "max_tokens": 24}


def controller_of(chat):
    chat.build_parts()
    return chat.speculator.controller


def test_a_controller_goes_on_after_settings_were_changed_and_changed_back():
    chat = converse(scripted_target(), **LOOKED_UP)
    collect(chat.reply(PROMPT, 1))
    before, first = chat.settings, controller_of(chat)
    chat.change(before.but({"nodes": 2}))
    other = controller_of(chat)
    chat.change(before)
    assert controller_of(chat) is first
    assert other is not first


def test_sampling_and_length_do_not_ask_for_another_controller():
    chat = converse(scripted_target(), **LOOKED_UP)
    first = controller_of(chat)
    chat.change(chat.settings.but({"temperature": 0.7, "max_tokens": 9}))
    assert controller_of(chat) is first


def test_costs_measured_anew_give_new_controllers():
    chat = converse(scripted_target(), **LOOKED_UP)
    first = controller_of(chat)
    chat.learn_costs(Costs(((1, 1.0), (2, 1.1), (4, 1.3))))
    assert controller_of(chat) is not first


def test_a_conversation_apart_has_controllers_of_its_own():
    chat = converse(scripted_target(), **LOOKED_UP)
    with chat.apart({}) as apart:
        assert controller_of(apart) is not controller_of(chat)


def test_few_controllers_are_kept_and_the_one_in_use_is_among_them():
    chat, cache = converse(scripted_target(), **LOOKED_UP), ControllerCache()
    settings = [chat.settings.but({"nodes": nodes}) for nodes in range(1, KEPT_CONTROLLERS + 3)]
    made = [object() for _ in settings]
    for one, new in zip(settings, made, strict=True):
        assert cache.kept(one, new) is new
    assert len(cache) == KEPT_CONTROLLERS
    assert cache.kept(settings[-1], object()) is made[-1]
    assert cache.kept(settings[0], again := object()) is again
