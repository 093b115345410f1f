"""Two replies by turns: who writes when, whose clock runs, and that the text is the one it would be alone."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from specchat.decoding import reply_events as stopwatch
from specchat.decoding.reply_events import Stopwatch
from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Cancel, Generate, Load, Message, SecondReply
from specchat.engine.server import replies as alternation
from specchat.engine.server.command_queue import CommandQueue
from specchat.engine.server.replies import SLICE_TOKENS, AlternatingReply, alternate
from specchat.engine.server.worker import Worker

HELLO = [Message("user", "What are you?")]


class Clock:
    """A clock that only work moves; work takes longer and longer."""

    def __init__(self, slower: float = 0.0) -> None:
        self.now, self.slower = 0.0, slower

    def work(self, seconds: float) -> None:
        self.now += seconds * (1 + self.slower * self.now)


def written(clock: Clock, log: list[str], name: str, tokens: int, each: int, seconds: float) -> AlternatingReply:
    def rounds() -> Iterator[int]:
        for _ in range(0, tokens, each):
            log.append(name)
            clock.work(seconds)
            yield each

    return AlternatingReply(rounds(), Stopwatch())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    one = Clock()
    monkeypatch.setattr(stopwatch, "time", SimpleNamespace(perf_counter=lambda: one.now))
    return one


def runs(log: list[str]) -> list[tuple[str, int]]:
    """Equal entries one after the other as one, with how many they were."""
    found: list[tuple[str, int]] = []
    for name in log:
        found[-1:] = [(name, found[-1][1] + 1)] if found and found[-1][0] == name else [*found[-1:], (name, 1)]
    return found


def test_turns_go_a_b_b_a(clock):
    log: list[str] = []
    alternate(written(clock, log, "a", 64, 1, 1.0), written(clock, log, "b", 64, 4, 2.0))
    assert runs(log) == [("a", 16), ("b", 8), ("a", 32), ("b", 8), ("a", 16)]


def test_both_are_written_to_their_ends_however_long(clock):
    log: list[str] = []
    alternate(written(clock, log, "a", 20, 1, 1.0), written(clock, log, "b", 90, 1, 1.0))
    assert (log.count("a"), log.count("b")) == (20, 90)


def test_a_clock_stands_still_in_the_others_turns(clock):
    a, b = written(clock, [], "a", 64, 1, 1.0), written(clock, [], "b", 64, 4, 2.0)
    alternate(a, b)
    for side, seconds in ((a, 64.0), (b, 32.0)):
        side.watch.go_on()
        assert side.watch.seconds == pytest.approx(seconds)
    assert clock.now == pytest.approx(96.0)


def ratio(clock: Clock, slice_tokens: int) -> float:
    """How much faster b seems, which truly is twice as fast, on a machine that gets slower."""
    clock.now, clock.slower = 0.0, 0.004
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alternation, "SLICE_TOKENS", slice_tokens)
        a, b = written(clock, [], "a", 512, 1, 0.1), written(clock, [], "b", 512, 4, 0.2)
        alternate(a, b)
    for side in (a, b):
        side.watch.go_on()
    return a.watch.seconds / b.watch.seconds


def test_what_the_machine_does_meanwhile_is_done_to_both(clock):
    assert ratio(clock, SLICE_TOKENS) == pytest.approx(2.0, rel=0.01)
    assert ratio(clock, 10**6) != pytest.approx(2.0, rel=0.05), "the control: one after the other"


@pytest.fixture
def engine(away_from_home: None) -> tuple[Worker, list[ev.Event]]:
    heard: list[ev.Event] = []
    worker = Worker(CommandQueue(), heard.append)
    worker.answer(Load({"pair": "scripted", "max_tokens": 60}))
    heard.clear()
    return worker, heard


def tokens_of(heard: list[ev.Event], id: int) -> list[int]:
    return [
        piece.token for event in heard if isinstance(event, ev.RoundDone) and event.id == id for piece in event.pieces
    ]


@pytest.mark.parametrize(
    "settings", [{"temperature": 0.0}, {"temperature": 0.8}, {"drafter": "prompt_lookup"}], ids=str
)
def test_turns_change_no_text(engine, settings):
    worker, heard = engine
    plain = settings | {"controller": "off"}
    worker.answer(Generate(1, HELLO, 7, plain))
    worker.answer(Generate(2, HELLO, 7, settings))
    worker.answer(Generate(3, HELLO, 7, plain, SecondReply(4, settings)))
    worker.answer(Generate(5, HELLO, 7, settings, SecondReply(6, plain)))
    assert len(tokens_of(heard, 1)) == 60
    assert tokens_of(heard, 1) == tokens_of(heard, 3) == tokens_of(heard, 6)
    assert tokens_of(heard, 2) == tokens_of(heard, 4) == tokens_of(heard, 5)


def test_the_sides_alternate_and_each_has_its_own_clock(engine):
    worker, heard = engine
    worker.answer(Generate(3, HELLO, 7, {"controller": "off"}, SecondReply(4, {})))
    rounds = [event for event in heard if isinstance(event, ev.RoundDone)]
    assert len(runs([str(round.id) for round in rounds])) > 4
    for id in (3, 4):
        at = [round.at_s for round in rounds if round.id == id]
        own = [sum((r.timings.draft_s, r.timings.verify_s, r.timings.other_s)) for r in rounds if r.id == id]
        assert at == sorted(at)
        finished = next(event for event in heard if isinstance(event, ev.Finished) and event.id == id)
        assert finished.at_s >= sum(own)


@pytest.mark.parametrize(("one", "other"), [({}, {}), ({"controller": "off"}, {"controller": "off"})])
def test_one_of_two_must_be_plain_decoding(engine, one, other):
    worker, heard = engine
    worker.answer(Generate(3, HELLO, 7, one, SecondReply(4, other)))
    assert [event.exit_code for event in heard if isinstance(event, ev.Failed)] == [2]
    worker.answer(Generate(5, HELLO, 7))
    assert tokens_of(heard, 5)


@pytest.mark.parametrize("id", [3, 4])
def test_cancelling_either_stops_both(engine, id):
    worker, heard = engine
    worker._commands.receive(Cancel(id))
    worker.answer(Generate(3, HELLO, 7, {"controller": "off"}, SecondReply(4, {})))
    assert [(event.id, event.stop) for event in heard if isinstance(event, ev.Finished)] == [
        (3, "cancelled"), (4, "cancelled"),
    ]  # fmt: skip


def test_the_second_cache_is_let_go_when_the_chat_goes_on(engine):
    worker, _ = engine
    worker.answer(Generate(3, HELLO, 7, {"controller": "off"}, SecondReply(4, {})))
    assert worker._pair.open._second is not None
    worker.answer(Generate(5, HELLO, 7))
    assert worker._pair.open._second is None
