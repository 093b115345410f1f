"""A race of two models: one question, each model on an engine of its own, by turns of some rounds.

Events in, commands out. Only one model writes at a time, held and let go by `Pace`, so that neither takes the processor
from the other. Each has its own clock, which stands still while it is held.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specchat.engine.client.race import Heat, RacePhase, Side
from specchat.engine.protocol.commands import Cancel, Command, Generate, Load, Message, Pace
from specchat.engine.protocol.events import Died, Event, Failed, Finished, Loading, Prefilled, Ready, RoundDone, Started

MODEL_SIDES: tuple[Side, Side] = ("own", "other")
"""The model of the chat, and the one that is loaded beside it."""

TURN_ROUNDS = 8
_WARM_UP_TOKENS = 8

Addressed = list[tuple[Side, Command]]
"""Commands, and to whose engine each goes."""


class ModelRace:
    """Says what to send to which engine next, and keeps what came of it.

    Args:
        ids: unused ids for replies, on either engine.
        settings: what the other pair is loaded with.
        own: settings of this race that differ from those of the chat.
        sampling: settings that both sides are sampled with, for the other, whose pair may have others.
    """

    def __init__(
        self,
        messages: Sequence[Message],
        seed: int,
        ids: Iterator[int],
        names: tuple[str, str],
        settings: Mapping[str, Any],
        own: Mapping[str, Any],
        sampling: Mapping[str, Any],
    ) -> None:
        self.messages = list(messages)
        self.seed = seed
        self.names: dict[Side, str] = dict(zip(MODEL_SIDES, names, strict=True))
        self.heats: dict[Side, Heat] = {side: Heat(side) for side in MODEL_SIDES}
        self.phase: RacePhase = "loading"
        self.running: Side | None = None
        self.loading: Loading | None = None
        self.prefilled = (0, 0)
        self.problem = ""
        self._given = (ids, names, settings, own, sampling)
        self._ids, self._settings = ids, settings
        self._apart: dict[Side, dict[str, Any]] = {"own": dict(own), "other": dict(sampling)}
        self._written: dict[Side, int] = {}  # ids of the replies that are being written, by side
        self._turns = 0
        self._left = 0  # rounds of this turn

    def again(self) -> ModelRace:
        """The same race from its beginning; the models stay loaded."""
        race = ModelRace(self.messages, self.seed, *self._given)
        race.phase = "warming"
        return race

    @property
    def ended(self) -> bool:
        return self.phase in ("over", "stopped", "failed")

    def begin(self) -> Addressed:
        return [("other", Load(dict(self._settings)))] if self.phase == "loading" else self._warm_up("own")

    def stop(self) -> Addressed:
        """The commands that stop the replies at their next round; none if there is nothing to stop."""
        if self.ended:
            return []
        self.phase = "stopped"
        return [(side, Cancel(id)) for side, id in self._written.items()]

    def hear(self, side: Side, event: Event) -> Addressed:
        """Learn from one event of this side's engine; what to send next, if anything."""
        if self.ended:
            return []
        match event:
            case Died():
                said = event.last_words.strip().splitlines()
                return self._fail(f"the engine of {self.names[side]} stopped{f': {said[-1]}' if said else ''}")
            case Loading() if side == "other" and self.phase == "loading":
                self.loading = event
            case Ready() if side == "other" and self.phase == "loading":
                self.phase = "warming"
                return self._warm_up("own")
            case Failed(during="load") if side == "other":
                return self._fail(f"{self.names[side]} was not loaded: {event.message}")
            case Failed() if event.id == self._written.get(side) and event.id is not None:
                return self._fail(f"{self.names[side]}: {event.message}")
            case Started() | Prefilled() | RoundDone() | Finished() if event.id == self._written.get(side):
                return self._written_by(side, event)
        return []

    def _written_by(self, side: Side, event: Started | Prefilled | RoundDone | Finished) -> Addressed:
        racing, heat = self.phase == "racing", self.heats[side]
        match event:
            case Prefilled():
                self.prefilled = (event.done, event.total)
            case Started() if racing:
                heat.started = event
            case RoundDone() if racing:
                heat.rounds.append(event)
                self._left -= 1
                return self._next_turn() if not self._left else []
            case Finished():
                del self._written[side]
                if event.stop == "cancelled":
                    self.phase = "stopped"
                    return [(side, Cancel(id)) for side, id in self._written.items()]
                if racing:
                    heat.finished = event
                    return self._next_turn() if side == self.running else []
                if side == "own":
                    return self._warm_up("other")
                self.phase = "racing"
                return self._next_turn()
        return []

    def _warm_up(self, side: Side) -> Addressed:
        """A few tokens that are not counted: the first reply of a process is slower than later ones."""
        return [(side, self._generate(side, {"max_tokens": _WARM_UP_TOKENS}))]

    def _next_turn(self) -> Addressed:
        """Let the next side write: A B, B A, A B, …; without end where the other has ended."""
        left = [side for side in MODEL_SIDES if self.heats[side].finished is None]
        if not left:
            self.phase, self.running = "over", None
            return []
        side = left[0]
        if len(left) > 1:
            side = MODEL_SIDES[(self._turns + 1) // 2 % 2]
            self._turns += 1
        alone, self.running, self._left = len(left) == 1, side, -1 if len(left) == 1 else TURN_ROUNDS
        begins = side not in self._written
        generate: Addressed = [(side, self._generate(side, {}))] if begins else []
        granted = TURN_ROUNDS - 1 if begins else TURN_ROUNDS  # the first round of a reply is not waited for
        pace = Pace(self._written[side]) if alone else Pace(self._written[side], hold=True, rounds=granted)
        return [(side, pace), *generate]

    def _generate(self, side: Side, more: Mapping[str, Any]) -> Generate:
        self.prefilled = (0, 0)
        self._written[side] = next(self._ids)
        return Generate(self._written[side], self.messages, self.seed, {**self._apart[side], **more})

    def _fail(self, why: str) -> Addressed:
        self.phase, self.problem = "failed", why
        return [(side, Cancel(id)) for side, id in self._written.items()]
