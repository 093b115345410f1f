"""A race of two models: two engines, one of which writes at a time; what goes wrong on one side ends both."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Iterator

import pytest

from specchat.engine.client.model_race import MODEL_SIDES, TURN_ROUNDS, Addressed, ModelRace
from specchat.engine.client.race import Side
from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Cancel, Command, Generate, Load, Message, Quit
from specchat.engine.server.command_queue import CommandQueue
from specchat.engine.server.worker import Worker

HELLO = [Message("user", "What are you?")]
LOADED = {"pair": "scripted", "max_tokens": 60}


def race_of(**own: object) -> ModelRace:
    return ModelRace(HELLO, 7, itertools.count(1), ("here", "there"), LOADED, own, {"max_tokens": 40})


class Engines:
    """Two engines of this process, each in a thread of its own, with the scripted pair."""

    def __init__(self) -> None:
        self.heard: queue.SimpleQueue[tuple[Side, ev.Event]] = queue.SimpleQueue()
        self.queues = {side: CommandQueue() for side in MODEL_SIDES}
        self.sent: list[tuple[Side, Command]] = []
        for side, commands in self.queues.items():
            worker = Worker(commands, lambda event, side=side: self.heard.put((side, event)))
            threading.Thread(target=worker.run, daemon=True).start()

    def send(self, commands: Addressed) -> None:
        for side, command in commands:
            self.sent.append((side, command))
            self.queues[side].receive(command)

    def hold(self, race: ModelRace) -> list[tuple[Side, ev.Event]]:
        """The whole race; everything that was heard meanwhile."""
        self.send(race.begin())
        heard = []
        while not race.ended:
            side, event = self.heard.get(timeout=30)
            heard.append((side, event))
            self.send(race.hear(side, event))
        return heard


@pytest.fixture
def engines(away_from_home: None) -> Iterator[Engines]:
    both = Engines()
    both.send([("own", Load(LOADED))])
    while not isinstance(both.heard.get(timeout=30)[1], ev.Ready):
        pass
    yield both
    both.send([(side, Quit()) for side in MODEL_SIDES])


def test_two_engines_write_by_turns_and_the_chats_own_is_free_afterwards(engines):
    race = race_of(max_tokens=50, controller="off")
    heard = engines.hold(race)
    assert (race.phase, race.problem) == ("over", "")
    own, other = (race.heats[side] for side in MODEL_SIDES)
    assert (len(own.tokens), len(other.tokens)) == (50, 40)
    assert own.acceptance_length == 1.0, "no guesses on this side"
    assert other.acceptance_length > 1.0
    order = [
        side for side, event in heard if isinstance(event, ev.RoundDone) and event.id == race.heats[side].started.id
    ]
    runs = [(side, len(list(group))) for side, group in itertools.groupby(order)]
    assert max(count for side, count in runs[:3]) <= 2 * TURN_ROUNDS, "a turn, and where the order turns, two"
    assert len(runs) > 3
    for heat in (own, other):
        spent = sum(r.timings.draft_s + r.timings.verify_s for r in heat.rounds)
        assert spent <= heat.decode_s

    again = race.again()
    engines.hold(again)
    assert [again.heats[side].tokens for side in MODEL_SIDES] == [own.tokens, other.tokens]
    assert sum(isinstance(command, Load) for _, command in engines.sent) == 2, "both stay loaded"
    engines.send([("own", Generate(99, HELLO, 7))])
    while not isinstance(event := engines.heard.get(timeout=30)[1], ev.Finished):
        pass
    assert event.id == 99


def begun() -> tuple[ModelRace, Generate]:
    """A race whose own side is being warmed up."""
    race = race_of()
    race.begin()
    ready = ev.Ready("there", "T", None, "cpu", "float32", 1, 100, 1, 1.0, {}, ev.Losslessness(True, ""))
    ((side, command),) = race.hear("other", ready)
    assert side == "own"
    assert isinstance(command, Generate)
    return race, command


@pytest.mark.parametrize(
    ("side", "event", "said"),
    [
        ("own", ev.Failed("UsageError", "no room", id=1, during="generate"), "here: no room"),
        ("other", ev.Died(-9, "MemoryError"), "the engine of there stopped: MemoryError"),
    ],
)
def test_what_goes_wrong_ends_the_race_names_the_model_and_stops_the_reply(side, event, said):
    race, command = begun()
    assert race.hear(side, event) == [("own", Cancel(command.id))]
    assert (race.phase, race.problem) == ("failed", said)
    assert race.hear("own", ev.Died(1, "")) == race.stop() == []


def test_a_model_that_is_not_loaded_is_named_and_nothing_is_written():
    race = race_of()
    assert race.begin() == [("other", Load(LOADED))]
    assert race.hear("own", ev.Failed("ModelError", "of something else", during="load")) == []
    assert race.hear("other", ev.Failed("ModelError", "not a model", during="load")) == []
    assert (race.phase, race.problem) == ("failed", "there was not loaded: not a model")


def test_answers_of_the_other_engine_with_the_same_id_are_not_taken():
    race, command = begun()
    stats = ev.Stats(1, 1, 0, 0, 1.0, 1.0, 0.0, 0.5, 0.0, 0.1, 0.0)
    assert race.hear("other", ev.Finished(command.id, "length", "", stats, 1.0)) == []
    ((side, warm),) = race.hear("own", ev.Finished(command.id, "length", "", stats, 1.0))
    assert (side, warm.apart["max_tokens"]) == ("other", 8)
    assert race.stop() == [("other", Cancel(warm.id))]
