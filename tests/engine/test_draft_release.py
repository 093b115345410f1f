"""Draft models that the settings no longer use give their memory back, a while after their last use."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

from specchat.drafters import DRAFTERS
from specchat.engine.protocol import events as ev
from specchat.engine.protocol.codec import decode_event, encode
from specchat.engine.protocol.commands import Change, Generate, Load, Message, Pace, Quit, SecondReply
from specchat.engine.server import open_pair as current_pair
from specchat.engine.server.command_queue import CommandQueue
from specchat.engine.server.worker import Worker

ASK = [Message("user", "What are you?")]
WITHOUT = sorted(
    name for name, method in DRAFTERS.items()
    if not (method.needs_draft_model or method.needs_weights or name in ("datastore", "pruned", "shipped_mtp"))
)  # fmt: skip


class Engine:
    """A worker that is asked for idle work when a test says so, and what it said."""

    def __init__(self) -> None:
        self.heard: list[ev.Event] = []
        self.commands = CommandQueue()
        self.worker = Worker(self.commands, self.heard.append)
        self.pair = self.worker._pair

    def say(self, *commands: object) -> list[ev.Event]:
        self.heard.clear()
        for command in commands:
            self.worker.answer(command)
        return self.heard

    def idle(self) -> list[str]:
        """The draft models that went, once enough time has passed."""
        self.heard.clear()
        while self.pair.release_in_s() == 0.0:
            self.worker._work_idle()
        return [name for event in self.heard if isinstance(event, ev.Released) for name in event.models]


@pytest.fixture
def engine(monkeypatch) -> Engine:
    monkeypatch.setattr(current_pair, "KEPT_UNUSED_S", 0.0)
    engine = Engine()
    engine.say(Load({"pair": "scripted", "max_tokens": 20}))
    return engine


def draft_of(engine: Engine) -> weakref.ref:
    (draft,) = engine.pair.open.loaded.drafts
    return weakref.ref(draft.model)


@pytest.mark.parametrize("drafter", WITHOUT)
def test_nothing_holds_a_draft_model_once_another_drafter_is_in_use(engine, drafter):
    engine.say(Change({"drafter": "fuse", "controller": "goodput"}), Generate(1, ASK, 7))
    draft = draft_of(engine)
    assert engine.idle() == []
    assert isinstance(engine.say(Change({"drafter": drafter}), Generate(2, ASK, 7))[-1], ev.Finished)
    text = "".join(piece.text for one in engine.heard if isinstance(one, ev.RoundDone) for piece in one.pieces)
    assert engine.idle() == ["scripted-draft"]
    gc.collect()
    assert draft() is None
    engine.say(Generate(3, ASK, 7))
    assert text == "".join(piece.text for one in engine.heard if isinstance(one, ev.RoundDone) for piece in one.pieces)


def test_a_released_draft_model_is_read_again_when_it_is_used_again(engine):
    said = []
    for drafter in ("draft_model", "suffix", "draft_model"):
        said += [event for event in engine.say(Change({"drafter": drafter})) if isinstance(event, ev.Changed)]
        engine.idle()
    assert [event.draft for event in said] == ["scripted-draft", "", "scripted-draft"]
    assert [event.memory_bytes > 0 for event in said] == [True, False, True]
    replies = engine.say(Generate(1, ASK, 7))
    assert any(one.draft_passes for one in replies if isinstance(one, ev.RoundDone))


def test_a_draft_model_stays_for_a_while_after_its_last_use(engine, monkeypatch):
    engine.say(Change({"drafter": "draft_model"}))
    assert engine.pair.release_in_s() is None
    monkeypatch.setattr(current_pair, "KEPT_UNUSED_S", 1000.0)
    engine.say(Change({"drafter": "suffix"}))
    assert 990 < engine.pair.release_in_s() <= 1000
    engine.say(Change({"temperature": 0.5}), Generate(1, ASK, 7))
    monkeypatch.setattr(current_pair, "KEPT_UNUSED_S", 0.0)
    assert engine.idle() == ["scripted-draft"]


def test_a_draft_model_for_one_reply_alone_or_for_one_of_two_goes_too(engine):
    engine.say(Generate(1, ASK, 7, apart={"drafter": "draft_model"}))
    draft = draft_of(engine)
    assert engine.idle() == ["scripted-draft"]
    engine.say(Generate(2, ASK, 7, {"drafter": "draft_model"}, SecondReply(3, {"controller": "off"})))
    again = draft_of(engine)
    assert engine.idle() == ["scripted-draft"]
    gc.collect()
    assert (draft(), again()) == (None, None)


def test_a_stated_limit_on_memory_has_room_again_and_plans_with_it(engine):
    engine.say(Load({"pair": "scripted", "max_tokens": 20, "memory": "4GB", "drafter": "draft_model"}))
    engine.say(Generate(1, ASK, 7))
    draft, before = draft_of(engine), engine.pair.open.loaded.memory
    taken = engine.pair.open.loaded.drafts[0].weight_bytes
    engine.say(Change({"drafter": "suffix"}), Generate(2, ASK, 7))
    assert engine.idle() == ["scripted-draft"]
    gc.collect()
    assert draft() is None
    assert engine.pair.open.loaded.memory.base_bytes == before.base_bytes - taken
    assert isinstance(engine.say(Generate(3, ASK, 7))[-1], ev.Finished)


def test_what_goodput_has_learnt_outlives_a_release(engine):
    engine.say(Change({"drafter": "suffix", "controller": "goodput"}), Generate(1, ASK, 7))
    kept = engine.pair.open.conversation.speculator.controller.controller
    engine.say(Change({"drafter": "draft_model"}), Change({"drafter": "suffix"}))
    engine.idle()
    engine.say(Generate(2, ASK, 7))
    assert engine.pair.open.conversation.speculator.controller.controller is kept


def test_a_draft_model_goes_only_when_the_reply_has_ended(monkeypatch):
    """The whole engine, in its own thread: the change comes in the middle of a reply that is held."""
    monkeypatch.setattr(current_pair, "KEPT_UNUSED_S", 0.0)
    commands, heard, released = CommandQueue(), [], threading.Event()

    def hear(event: ev.Event) -> None:
        heard.append(event)
        if isinstance(event, ev.RoundDone) and event.index == 2:
            commands.receive(Change({"drafter": "suffix"}))
        if isinstance(event, ev.Changed):
            threading.Timer(1.0, commands.receive, [Pace(1)]).start()
        if isinstance(event, ev.Released):
            released.set()

    thread = threading.Thread(target=Worker(commands, hear).run)
    commands.receive(Load({"pair": "scripted", "max_tokens": 20, "drafter": "draft_model"}))
    commands.receive(Pace(1, hold=True, rounds=4))
    commands.receive(Generate(1, ASK, 7))
    thread.start()
    assert released.wait(60)
    commands.receive(Quit())
    thread.join(60)
    kinds = [type(event) for event in heard]
    assert kinds.index(ev.Changed) < kinds.index(ev.Finished) < kinds.index(ev.Released)


def test_a_released_event_crosses_the_boundary():
    event = ev.Released(["scripted-draft"], 5)
    assert decode_event(encode(event)) == event
