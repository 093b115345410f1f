"""`specchat run --race`: one prompt and one seed, plain and speculative, or two models, with both times."""

from __future__ import annotations

import itertools
import signal
import threading
from collections import deque
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import Any

import msgspec

from specchat.cli.run import Asked, near_ties_of
from specchat.cli.run_output import Outputs
from specchat.config import load_catalog
from specchat.engine.client.client import Engine, EngineFailure, raise_death
from specchat.engine.client.model_race import MODEL_SIDES, Addressed, ModelRace
from specchat.engine.client.race import (
    RACE_DEFAULTS,
    SIDES,
    Heat,
    Race,
    Side,
    race_result,
    race_seed,
    refuse_plain,
    settings_line,
)
from specchat.engine.client.start_engine import start_engine
from specchat.engine.protocol import events
from specchat.engine.protocol.commands import Load, Message
from specchat.errors import EngineError
from specchat.settings import SPECULATION

_NAMES = {"plain": "plain decoding", "speculative": "speculative"}


def race_once(asked: Asked) -> int:
    """Hold one race, greedy unless the settings say otherwise.

    The exit code is 0 also where the texts part at a near-tie, 1 where they must not.
    """
    with asked.begun() as (engine, outputs, messages):
        return _RaceOutput(engine, outputs, {**RACE_DEFAULTS, **asked.settings}, messages).go()


def race_models_once(asked: Asked, against: str) -> int:
    """Hold one race of the settings' pair and another one; greedy as above."""
    if not asked.engine:
        load_catalog().pair(against)  # a name that does not exist is refused before anything is started
    settings = {**RACE_DEFAULTS, **asked.settings}
    with replace(asked, settings=settings).begun() as (own, outputs, messages):
        other = start_engine(asked.engine, settings, number=1)
        try:
            return _ModelRaceOutput({"own": own, "other": other}, outputs, settings, messages, against).go()
        finally:
            other.close()


@dataclass
class _ModelRaceOutput:
    engines: dict[Side, Engine]
    outputs: Outputs
    settings: dict[str, Any]
    messages: list[Message]
    against: str
    race: ModelRace | None = None
    heard: SimpleQueue[tuple[Side, events.Event]] = field(default_factory=SimpleQueue)
    held: deque[events.Event] = field(default_factory=deque)  # of the other model, until the first is told

    def go(self) -> int:
        for side in MODEL_SIDES:
            threading.Thread(target=self._listen, args=(side,), name=f"{side}-events", daemon=True).start()
        self.engines["own"].send(Load(self.settings))
        while self.race is None or not self.race.ended:
            self._on(*self.heard.get())
        if self.race.phase == "failed":
            raise EngineError(self.race.problem)
        lines = [self._line(self.race, side) for side in MODEL_SIDES]
        self.outputs.text("\n\n" + "\n".join(lines) + "\ntwo models write two texts, so there is no ratio\n")
        told: dict[str, Any] = {"seed": self.race.seed, "order": list(MODEL_SIDES)}
        for side, heat in self.race.heats.items():
            told[side] = {"pair": self.race.names[side], **_heat_object(heat)}
        self.outputs.summary(told, "")
        return 0

    def _listen(self, side: Side) -> None:
        for event in self.engines[side].events():
            self.heard.put((side, event))

    def _on(self, side: Side, event: events.Event) -> None:
        match event:
            case events.Loading():
                self.outputs.loading(event)
            case events.Ready() if self.race is None and side == "own":
                self._start(event)
            case events.Failed() if self.race is None:
                raise EngineFailure(event)
            case events.Died() if self.race is None:
                raise_death(event)
            case _ if self.race is not None:
                self._race_on(self.race, side, event)

    def _start(self, ready: events.Ready) -> None:
        sampling = {name: ready.settings[name] for name in RACE_DEFAULTS}
        other = {name: value for name, value in self.settings.items() if name not in SPECULATION}
        names = (ready.pair, self.against if self.against != ready.pair else f"{ready.pair} again")
        wanted = other | {"pair": self.against}
        self.race = ModelRace(self.messages, race_seed(ready.settings), itertools.count(1), names, wanted, {}, sampling)
        self._send(self.race.begin())

    def _race_on(self, race: ModelRace, side: Side, event: events.Event) -> None:
        counted = race.phase == "racing" and isinstance(event, events.Started | events.RoundDone | events.Finished)
        self._send(race.hear(side, event))
        if counted and side == "other" and race.heats["own"].finished is None:
            self.held.append(event)
        elif counted:
            self._tell(race, side, event)
            while race.heats["own"].finished is not None and self.held:
                self._tell(race, "other", self.held.popleft())

    def _tell(self, race: ModelRace, side: Side, event: events.Event) -> None:
        self.outputs.event(event)
        match event:
            case events.Started():
                lead = "" if side == "own" else "\n\n"
                self.outputs.text(f"{lead}── {race.names[side]} · {settings_line(event.settings, race.seed)}\n")
            case events.RoundDone():
                self.outputs.text("".join(piece.text for piece in event.pieces))
            case events.Finished():
                self.outputs.text(event.tail)

    def _line(self, race: ModelRace, side: Side) -> str:
        heat, width = race.heats[side], max(map(len, race.names.values()))
        speed = f"{heat.decode_s:7.2f} s {len(heat.tokens):6,} tok {heat.tokens_per_s:8.1f} tok/s"
        return f"{race.names[side]:<{width}}{speed}   τ {heat.acceptance_length:.2f}"

    def _send(self, commands: Addressed) -> None:
        for side, command in commands:
            self.engines[side].send(command)


@dataclass
class _RaceOutput:
    engine: Engine
    outputs: Outputs
    settings: dict[str, Any]
    messages: list[Message]
    ready: events.Ready | None = None
    race: Race | None = None
    interrupted: bool = False
    held: deque[events.Event] = field(default_factory=deque)  # of the speculative side, until the other is told

    def go(self) -> int:
        before = signal.signal(signal.SIGINT, self._interrupt)
        try:
            self.engine.send(Load(self.settings))
            for event in self.engine.events():
                self._on(event)
                if self.interrupted and isinstance(event, events.Finished):
                    return 130
                if self.race is not None and self.race.ended and not self.interrupted:
                    return self._result(self.race)
            return 130 if self.interrupted else 1
        finally:
            signal.signal(signal.SIGINT, before)

    def _interrupt(self, *_: object) -> None:
        """Ctrl+C: stop at the next round; before anything is written, or a second time, just leave."""
        command = self.race.stop() if self.race is not None and not self.interrupted else None
        if command is None or self.race is None or self.race.running is None:
            raise KeyboardInterrupt
        self.interrupted = True
        threading.Thread(target=self.engine.send, args=(command,), daemon=True).start()

    def _on(self, event: events.Event) -> None:
        match event:
            case events.Loading():
                self.outputs.loading(event)
            case events.Ready():
                self.outputs.event(event)
                self._start(event)
            case events.Failed() if self.race is None:
                raise EngineFailure(event)
            case events.Died():
                raise_death(event)
            case _ if self.race is not None:
                self._race_on(self.race, event)

    def _start(self, ready: events.Ready) -> None:
        refuse_plain(ready.settings)
        self.ready, self.race = ready, Race(self.messages, race_seed(ready.settings), itertools.count(1))
        self.engine.send(self.race.begin())

    def _race_on(self, race: Race, event: events.Event) -> None:
        counted = race.owns(event) and (race.phase != "warming" or isinstance(event, events.Compared))
        side = race.side_of(event)
        if (command := race.hear(event)) is not None:
            self.engine.send(command)
        if not counted:
            return
        if side == "speculative":
            self.held.append(event)  # both are written by turns, and told one after the other
        else:
            self._tell(race, event)
        if race.phase != "racing":
            while self.held:
                self._tell(race, self.held.popleft())

    def _tell(self, race: Race, event: events.Event) -> None:
        self.outputs.event(event)
        match event:
            case events.Started():
                lead, about = ("", "") if race.side_of(event) == "plain" else ("\n\n", f" · {self._about(race)}")
                self.outputs.text(f"{lead}── {_NAMES[str(race.side_of(event))]}{about}\n")
            case events.RoundDone():
                self.outputs.text("".join(piece.text for piece in event.pieces))
            case events.Finished():
                self.outputs.text(event.tail)

    def _about(self, race: Race) -> str:
        assert self.ready is not None, "a race begins when a pair is ready"
        return f"{self.ready.pair} · {settings_line(race.settings, race.seed, self.ready.dtype)}"

    def _result(self, race: Race) -> int:
        if race.phase == "failed":
            raise EngineError(race.problem)
        assert self.ready is not None, "a race begins when a pair is ready"
        found = race_result(race, self.ready.dtype)
        self.outputs.text("\n\n" + "\n".join(_line(race, race.heats[side]) for side in SIDES))
        self.outputs.text(f"\n{'✓' if found.kind == 'same' else '✕' if found.kind == 'fault' else '≈'} {found.line}")
        self.outputs.summary(_as_object(race, self.ready), "")
        return 0 if race.sound else 1


def _line(race: Race, heat: Heat) -> str:
    line = f"{_NAMES[heat.side]:<15}{heat.decode_s:7.2f} s {len(heat.tokens):6,} tok {heat.tokens_per_s:8.1f} tok/s"
    return line if heat.side == "plain" else f"{line}   τ {heat.acceptance_length:.2f}   {race.ratio:.2f}× plain"


def _as_object(race: Race, ready: events.Ready) -> dict[str, Any]:
    found = race_result(race, ready.dtype)
    return {
        "pair": ready.pair,
        "dtype": ready.dtype,
        "device": ready.device,
        "seed": race.seed,
        "settings": race.settings,
        "order": list(SIDES),
        **{side: _heat_object(race.heats[side]) for side in SIDES},
        "ratio": race.ratio,
        "same_text": {
            "equal": race.same,
            "promised": race.promised,
            "lossless": race.speculative.started.loss.lossless if race.speculative.started else None,
            **near_ties_of(race.speculative.started),
            "kind": found.kind,
            "line": found.line,
            "parting": None if race.compared is None else msgspec.to_builtins(race.compared),
        },
    }


def _heat_object(heat: Heat) -> dict[str, Any]:
    assert heat.finished is not None, "a race that is over has two replies"
    return {
        "text": heat.text,
        "tokens": heat.tokens,
        "stop": heat.finished.stop,
        "decode_s": heat.decode_s,
        "tokens_per_s": heat.tokens_per_s,
        "acceptance_length": heat.acceptance_length,
        "stats": msgspec.to_builtins(heat.finished.stats),
    }
