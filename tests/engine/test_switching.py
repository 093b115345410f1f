"""Switching the pair: whatever goes wrong with the new one, the old one goes on."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from tiny_models import add_tiny_pair

from specchat.config import config_dir, private_dir
from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Generate, Load, Message
from specchat.engine.server import open_pair as current_pair
from specchat.engine.server.command_queue import CommandQueue
from specchat.engine.server.loaded_pair import LoadedPair
from specchat.engine.server.pair_loading import Loader
from specchat.engine.server.worker import Worker
from specchat.errors import ModelError, NotEnoughMemory, TokenizerMismatch
from specchat.settings import Settings

PAIRS = '[pairs.{0}]\ntarget = "scripted"\n'


@dataclass(frozen=True)
class Troubled(Loader):
    """Loads the scripted models, and fails as it was told to."""

    def load(self, settings: Settings) -> LoadedPair:
        loads.append(settings.pair)
        may_stream.append(self.streams)
        failures = troubles.get(settings.pair, [])
        if failures:
            raise failures.pop(0)
        loaded = Loader.load(self, settings.but({"pair": "scripted"}))
        return replace(loaded, name=settings.pair, loaded_drafts=())


loads: list[str] = []
may_stream: list[bool] = []
troubles: dict[str, list[Exception]] = {}


@pytest.fixture
def heard(monkeypatch) -> list[ev.Event]:
    """What a worker said that loaded `old`, was asked for `new`, and then for a reply."""
    (private_dir(config_dir()) / "models.toml").write_text(PAIRS.format("old") + PAIRS.format("new"))
    monkeypatch.setattr(current_pair, "Loader", Troubled)
    loads.clear()
    troubles.clear()
    return []


def switch(heard: list[ev.Event], **settings: Any) -> list[ev.Event]:
    """What is said to a switch to `new`."""
    commands = CommandQueue()
    worker = Worker(commands, heard.append)
    worker.answer(Load({"pair": "old", "max_tokens": 5}))
    heard.clear()
    worker.answer(Load({"pair": "new", **settings}))
    said = list(heard)
    worker.answer(Generate(1, [Message("user", "What are you?")], 7))
    return [event for event in said if not isinstance(event, ev.Loading)]


def pair_of_reply(heard: list[ev.Event]) -> str:
    assert isinstance(heard[-1], ev.Finished)
    return next(event.pair for event in heard if isinstance(event, ev.Started))


@pytest.mark.parametrize("error", [ModelError("odd layers"), TokenizerMismatch("3 tokens of their tables differ")])
def test_a_pair_that_cannot_be_loaded_leaves_the_old_one_as_it_was(heard, error):
    troubles["new"] = [error]
    (failed,) = switch(heard)
    assert (failed.during, failed.message) == ("load", str(error))
    assert pair_of_reply(heard) == "old"
    assert loads == ["old", "new"]


def test_settings_that_do_not_fit_the_new_pair_leave_the_old_one_as_it_was(heard):
    (failed,) = switch(heard, drafter="draft_model")
    assert failed.kind == "CombinationError"
    assert pair_of_reply(heard) == "old"


def test_without_memory_for_both_the_old_pair_makes_room(heard):
    troubles["new"] = [NotEnoughMemory("no room")]
    (ready,) = switch(heard)
    assert ready.pair == "new"
    assert loads == ["old", "new", "new"]
    assert may_stream[-3:] == [True, False, True], "layers are left on the disk only when the old pair is gone"
    assert pair_of_reply(heard) == "new"


def test_a_pair_that_does_not_fit_even_alone_brings_the_old_one_back(heard):
    troubles["new"] = [NotEnoughMemory("no room"), NotEnoughMemory("still no room")]
    (failed,) = switch(heard)
    assert failed.message == "still no room"
    assert loads == ["old", "new", "new", "old"]
    assert pair_of_reply(heard) == "old"


def test_what_became_slower_is_told_once_and_when_the_pair_is_ready_again(heard, monkeypatch):
    slower = "tiny is slower than it could be: passes are launched kernel by kernel: no"
    monkeypatch.setattr(LoadedPair, "slower", [slower])
    worker = Worker(CommandQueue(), heard.append)
    worker.answer(Load({"pair": "old", "max_tokens": 5}))
    for number in (1, 2):
        worker.answer(Generate(number, [Message("user", "What are you?")], 7))
    assert [event.text for event in heard if isinstance(event, ev.Notice)] == [slower]
    assert [event.notes[-1] for event in heard if isinstance(event, ev.Ready)] == [slower]


def test_a_card_that_this_torch_cannot_use_is_named_when_a_pair_is_ready(tmp_path, monkeypatch):
    find = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, *more: "here" if name == "nvidia-smi" else find(name, *more))
    monkeypatch.setattr(torch.version, "cuda", None)
    add_tiny_pair(tmp_path)
    heard: list[ev.Event] = []
    worker = Worker(CommandQueue(), heard.append)
    for device in ("auto", "cpu"):
        worker.answer(Load({"pair": "tiny", "device": device, "drafter": "none"}))
    notes = [event.notes for event in heard if isinstance(event, ev.Ready)]
    assert [any("has an NVIDIA card" in note for note in some) for some in notes] == [True, False]
