"""A draft model is loaded once settings use it: by a change, between rounds of a reply, or for one reply alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from contracts.models import own_decoder, shared_network

from specchat.config import config_dir, load_catalog, private_dir
from specchat.core.memory import MemoryLimit
from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Change, Command, Generate, Load, Message, SecondReply
from specchat.engine.server.command_queue import CommandQueue
from specchat.engine.server.memory import limit_with_drafts
from specchat.engine.server.pair_loading import Loader
from specchat.engine.server.worker import Worker
from specchat.errors import CombinationError
from specchat.models.model_loading import Loaded
from specchat.settings import Settings

ASK = [Message("user", "What are you?")]

AWAY = """
[models.away]
sources = [{ package = "away==1", member = "away.gguf" }]
files = [{ name = "away.gguf", size = 5_000_000, sha256 = "{hash}" }]

[pairs.lone]
target = "scripted"
draft = "away"
"""


class Spoken:
    """A worker on this thread, what it said, and which models it read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.heard: list[ev.Event] = []
        self.read: list[str] = []
        self.commands = CommandQueue()
        self.worker = Worker(self.commands, self.hear)
        self.send_at_round: dict[int, Command] = {}
        load = Loader._load

        def counted(loader: Loader, spec: Any, *args: Any, **named: Any) -> Loaded:
            self.read.append(spec.name)
            return load(loader, spec, *args, **named)

        monkeypatch.setattr(Loader, "_load", counted)

    def hear(self, event: ev.Event) -> None:
        self.heard.append(event)
        if isinstance(event, ev.RoundDone) and (command := self.send_at_round.pop(event.index, None)):
            self.commands.receive(command)

    def answer(self, command: Command) -> list[ev.Event]:
        self.heard.clear()
        self.worker.answer(command)
        return [event for event in self.heard if not isinstance(event, ev.Loading)]


@pytest.fixture
def spoken(monkeypatch) -> Spoken:
    (private_dir(config_dir()) / "models.toml").write_text(AWAY.replace("{hash}", 64 * "0"))
    spoken = Spoken(monkeypatch)
    (ready,) = spoken.answer(Load({"pair": "scripted", "max_tokens": 30}))
    assert (ready.draft, spoken.read) == (None, ["scripted"])
    return spoken


def test_a_change_that_uses_a_draft_model_loads_it_beside_the_target_and_says_so(spoken):
    target = spoken.worker._pair.open.loaded.target
    (changed,) = spoken.answer(Change({"drafter": "fuse"}))
    assert (changed.settings["drafter"], changed.draft) == ("fuse", "scripted-draft")
    assert changed.memory_bytes > 0
    assert spoken.read == ["scripted", "scripted-draft"]
    assert spoken.worker._pair.open.loaded.target is target
    replies = spoken.answer(Generate(1, ASK, 7))
    assert isinstance(replies[-1], ev.Finished)
    assert any("draft_model" in {draw.proposer for draw in one.tree.draws} for one in replies if hasattr(one, "tree"))


def test_a_draft_model_that_is_loaded_is_not_read_again(spoken):
    said = [spoken.answer(Change({"drafter": drafter}))[-1] for drafter in ("draft_model", "suffix", "fuse")]
    assert [one.draft for one in said] == ["scripted-draft", "", "scripted-draft"]
    assert [one.memory_bytes > 0 for one in said] == [True, False, False]
    (ready,) = spoken.answer(Load({"pair": "scripted", "drafter": "draft_model"}))
    assert (ready.draft, spoken.read) == ("scripted-draft", ["scripted", "scripted-draft"])


def test_loading_the_pair_with_such_a_drafter_reads_only_the_draft_model(spoken):
    (ready,) = spoken.answer(Load({"pair": "scripted", "drafter": "draft_model"}))
    assert (ready.draft, spoken.read) == ("scripted-draft", ["scripted", "scripted-draft"])


def test_a_change_in_the_middle_of_a_reply_acts_in_the_same_reply(spoken):
    spoken.send_at_round[2] = Change({"drafter": "draft_model", "depth": 3, "nodes": 3})
    replies = spoken.answer(Generate(1, ASK, 7))
    assert [type(one) for one in replies if isinstance(one, ev.Changed | ev.Finished)] == [ev.Changed, ev.Finished]
    work = [one.draft_passes for one in replies if isinstance(one, ev.RoundDone)]
    assert not any(work[:3])
    assert any(work[3:])


@pytest.mark.parametrize("drafter", ["fuse", "draft_model"])
def test_settings_for_one_reply_alone_load_what_they_use(spoken, drafter):
    replies = spoken.answer(Generate(1, ASK, 7, apart={"drafter": drafter}))
    assert isinstance(replies[-1], ev.Finished)
    assert spoken.read == ["scripted", "scripted-draft"]
    assert spoken.worker._pair.open.conversation.settings.drafter == "prompt_lookup"


def test_two_replies_by_turns_load_what_either_uses(spoken):
    plain = SecondReply(2, {"controller": "off"})
    replies = spoken.answer(Generate(1, ASK, 7, {"drafter": "draft_model"}, plain))
    assert sum(isinstance(one, ev.Finished) for one in replies) == 2
    assert spoken.read == ["scripted", "scripted-draft"]


def test_a_change_that_does_not_fit_reads_nothing_and_changes_nothing(spoken):
    (failed,) = spoken.answer(Change({"method_options": {"draft_model.model": "other"}, "drafter": "draft_model"}))
    assert failed.message.startswith("draft_model.model = 'other' is not a draft model of pair 'scripted'")
    (failed,) = spoken.answer(Change({"drafter": "fuse", "rule": "multi_step", "temperature": 0.8}))
    assert failed.kind == "CombinationError"
    assert spoken.read == ["scripted"]
    assert spoken.worker._pair.open.conversation.settings.drafter == "prompt_lookup"


def test_a_change_fetches_nothing_but_names_what_has_to_be_fetched(spoken, monkeypatch):
    def fetched(*_: Any) -> None:
        pytest.fail("a change fetches nothing")

    assert spoken.answer(Load({"pair": "lone"}))[-1].draft is None
    monkeypatch.setattr(Loader, "_fetch", fetched)
    (failed,) = spoken.answer(Change({"drafter": "fuse"}))
    assert (failed.during, failed.missing) == ("change", {"away": 5_000_000})
    assert failed.message == (
        "drafter 'fuse' needs the draft model away (5.0 MB), which is not here; run: specchat models pull away"
    )
    assert spoken.worker._pair.open.conversation.settings.drafter == "prompt_lookup"
    (failed,) = spoken.answer(Generate(1, ASK, 7, apart={"drafter": "draft_model"}))
    assert (failed.during, failed.missing) == ("generate", {"away": 5_000_000})
    assert isinstance(spoken.answer(Generate(2, ASK, 7))[-1], ev.Finished)


def test_loading_with_a_draft_model_that_cannot_be_fetched_keeps_the_pair_as_it_was(spoken, monkeypatch):
    from specchat.errors import WeightsError

    def unreachable(*_: Any) -> None:
        raise WeightsError("no network")

    assert spoken.answer(Load({"pair": "lone"}))[-1].draft is None
    monkeypatch.setattr(Loader, "_fetch", unreachable)
    (failed,) = spoken.answer(Load({"pair": "lone", "drafter": "draft_model"}))
    assert (failed.during, failed.message) == ("load", "no network")
    started = spoken.answer(Generate(2, ASK, 7))[0]
    assert (started.pair, started.settings["drafter"]) == ("lone", "prompt_lookup")


def test_a_stated_limit_on_memory_counts_a_draft_model_that_is_loaded_later():
    def small(weight_bytes: int) -> Loaded:
        return Loaded("tiny", own_decoder(shared_network("llama"), 4000), None, frozenset(), weight_bytes, "float32")

    target, draft = small(0), small(70_000_000)
    target.model.limit_context_(1000)
    settings = Settings().but({"memory": "400MB", "drafter": "fuse"})
    limit = MemoryLimit(400_000_000, 300_000_000, int)
    grown = limit_with_drafts(limit, settings, target, (), [draft])
    assert (grown.base_bytes, draft.model.context_tokens) == (370_000_000, 1000)
    with pytest.raises(CombinationError, match="drafter 'fuse' uses draft model tiny, for which memory = 400MB"):
        limit_with_drafts(replace(limit, base_bytes=340_000_000), settings, target, (), [draft])
    loose = limit_with_drafts(limit, settings.but({"memory": ""}), target, (), [small(7)])
    assert loose.base_bytes == 300_000_007


def test_the_settings_of_the_catalog_are_as_these_tests_take_them():
    assert load_catalog().pair("scripted").drafts == ("scripted-draft",)
    assert load_catalog().pair("scripted").defaults["drafter"] == "prompt_lookup"
