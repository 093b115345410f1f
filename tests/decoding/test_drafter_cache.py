"""How long drafters live: as long as pair and options, within a bound; and checking settings builds none."""

from __future__ import annotations

from collections import Counter

import pytest
from contracts.kit import PROMPT, collect, converse, scripted_draft, scripted_target

from specchat.decoding.kept_parts import KEPT_DRAFTERS, DrafterCache
from specchat.drafters.choice import choose
from specchat.drafters.parts import Parts
from specchat.drafters.suffix import Suffix
from specchat.engine.protocol.commands import Generate, Load, Message, Statistics
from specchat.engine.protocol.events import Event, Finished
from specchat.engine.server.command_queue import CommandQueue
from specchat.engine.server.worker import Worker
from specchat.errors import CombinationError
from specchat.settings import Settings


@pytest.fixture
def lives(monkeypatch):
    """How many `suffix` drafters were built and closed."""
    counted = Counter()
    made, closed = Suffix.__init__, Suffix.close

    def build(self, options, parts):
        counted["built"] += 1
        made(self, options, parts)

    def close(self):
        counted["closed"] += 1
        closed(self)

    monkeypatch.setattr(Suffix, "__init__", build)
    monkeypatch.setattr(Suffix, "close", close)
    return counted


def suffix(depth):
    return Settings().but({"drafter": "suffix", "method_options": {"suffix.depth": depth}, "max_tokens": 3})


def test_checking_a_change_and_what_it_is_worth_builds_no_drafter(lives):
    chat = converse(scripted_target(), scripted_draft(), drafter="suffix")
    assert lives["built"] == 1
    for depth in range(2, 60):
        chat.change(suffix(depth))
        assert chat.losslessness.lossless
    with pytest.raises(CombinationError):
        chat.change(suffix(9).but({"rule": "multi_step", "temperature": 0.8}))
    assert lives["built"] == 1


def test_after_many_changes_a_few_drafters_are_kept_and_the_others_are_closed(lives):
    chat = converse(scripted_target(), drafter="suffix", max_tokens=3)
    for depth in range(2, 60):
        chat.change(suffix(depth))
        collect(chat.reply(PROMPT, 1))
        assert lives["built"] - lives["closed"] <= KEPT_DRAFTERS
    assert lives == {"built": 59, "closed": 59 - KEPT_DRAFTERS}
    assert len(chat.drafters) == KEPT_DRAFTERS


def test_the_drafter_unused_for_longest_goes_first_and_others_keep_what_they_learnt():
    cache, parts = DrafterCache(), Parts(scripted_target())

    def get(depth):
        choice = choose("suffix", suffix(depth))
        return cache.get(choice, lambda: Suffix(choice.options, parts))

    feeds = {depth: get(depth) for depth in range(2, 2 + KEPT_DRAFTERS)}
    assert get(2) is feeds[2]
    get(100)
    assert get(2) is feeds[2]
    assert get(3) is not feeds[3]


def test_a_conversation_apart_closes_its_drafters_when_it_ends(lives):
    chat = converse(scripted_target(), drafter="prompt_lookup")
    with chat.apart({"drafter": "suffix", "max_tokens": 3}) as apart:
        collect(apart.reply(PROMPT, 1))
        assert lives == {"built": 1}
    assert lives == {"built": 1, "closed": 1}


def test_a_pair_that_is_loaded_again_with_other_settings_keeps_its_drafters_and_another_pair_does_not(lives):
    said: list[Event] = []
    worker = Worker(CommandQueue(), said.append)
    settings = {"pair": "scripted", "drafter": "suffix", "controller": "fixed", "max_tokens": 4}
    for temperature in (0.0, 0.5):
        worker.answer(Load({**settings, "temperature": temperature}))
        worker.answer(Generate(1, [Message("user", "What are you?")], 7))
        assert isinstance(said[-1], Finished), said[-1]
    assert lives == {"built": 1}
    worker.answer(Statistics())
    assert said[-1].replies == 2, "and the figures of the session"
    worker.answer(Load({**settings, "dtype": "float32"}))
    assert lives == {"built": 2, "closed": 1}
