"""`specchat run --race`: one prompt and one seed, plain and speculative, with both times and what they prove."""

from __future__ import annotations

import itertools
import signal
import threading
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from specchat.cli.flags import Output
from specchat.cli.run import near_ties_of, with_engine
from specchat.cli.run_output import Outputs
from specchat.engine.client.client import Engine, EngineFailure, raise_death
from specchat.engine.client.race import (
    RACE_DEFAULTS,
    SIDES,
    Heat,
    Race,
    fresh_seed,
    race_result,
    refuse_plain,
    settings_line,
)
from specchat.engine.protocol import events
from specchat.engine.protocol.commands import Load, Message
from specchat.errors import EngineError

_NAMES = {"plain": "plain decoding", "speculative": "speculative"}


def race_once(
    prompt: str | None, settings: dict[str, Any], output: Output, record: Path | None, system: str | None, engine: str
) -> int:
    """Hold one race, greedy unless the settings say otherwise.

    The exit code is 0 also where the texts part at a near-tie, 1 where they must not.
    """
    return with_engine(
        lambda process, outputs, messages: _RaceOutput(process, outputs, {**RACE_DEFAULTS, **settings}, messages).go(),
        prompt, settings, output, record, system, engine,
    )  # fmt: skip


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
        pinned = ready.settings["seed"]
        seed = pinned if pinned >= 0 else fresh_seed()
        self.ready, self.race = ready, Race(self.messages, seed, itertools.count(1))
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
    """The whole race as one object."""
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
