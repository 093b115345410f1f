"""A race as it is watched: both sides from one start, one of them played again from its own recorded times."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from specchat.engine.near.race import Race, Side
from specchat.engine.protocol.events import Command, Event, RoundDone


@dataclass(frozen=True)
class Contest:
    """What races are about: the pair in use, its number format, and the settings in force."""

    pair: str
    dtype: str
    settings: Mapping[str, Any]

    @property
    def longest(self) -> int:
        """The longest reply the settings allow, in tokens."""
        return int(self.settings.get("max_tokens", 0))


class Course:
    """Which rounds are to be seen now. Each side ran alone; what is shown beside a running one is its recording.

    Args:
        clock: seconds; only differences count.
    """

    def __init__(self, race: Race, clock: Callable[[], float]) -> None:
        self.race = race
        self._clock = clock
        self._zero: dict[Side, float] = {}  # by our clock, when a side's decoding began
        self._skipped = False

    def hear(self, event: Event) -> Command | None:
        """Learn from one event; what to send next, if anything."""
        side = self.race.running
        command = self.race.hear(event)
        if side is not None and isinstance(event, RoundDone) and self.race.owns(event):
            zero = self._clock() - self.race.heats[side].decode_s
            self._zero[side] = min(zero, self._zero.get(side, zero))  # what was heard late did not happen late
        return command

    def stop(self) -> Command | None:
        """What stops it; None if there is nothing to stop."""
        return self.race.stop()

    @property
    def moving(self) -> bool:
        """Something changes with time alone."""
        return not self.race.ended or not self.finished

    @property
    def finished(self) -> bool:
        """Everything there is has been shown."""
        return self.race.ended and self.seen("plain") == len(self.race.plain.rounds)

    def skip(self) -> None:
        """Show the end of what is only played again; a race that runs goes on at its own pace."""
        self._skipped = self.race.running is None

    def seen(self, side: Side) -> int:
        """How many rounds of a side are to be shown."""
        heat = self.race.heats[side]
        if side == "speculative" or not self._beside or self._skipped:
            return len(heat.rounds)
        elapsed = self._since("speculative")
        return sum(round.at_s - heat.began_s <= elapsed for round in heat.rounds)

    def elapsed(self, side: Side) -> float:
        """Seconds of decoding a side shows."""
        heat = self.race.heats[side]
        if self.race.running == side:
            return self._since(side) if side in self._zero else 0.0
        if side == "plain" and self._beside and self.seen(side) < len(heat.rounds):
            return self._since("speculative")
        return heat.decode_s

    def done(self, side: Side) -> bool:
        """A side has reached its end, as far as is shown."""
        heat = self.race.heats[side]
        return heat.finished is not None and self.seen(side) == len(heat.rounds)

    def tokens(self, side: Side) -> int:
        """Tokens of the rounds that are shown."""
        return sum(len(round.pieces) for round in self.race.heats[side].rounds[: self.seen(side)])

    def share(self, side: Side, longest: int) -> float:
        """How much of its way a side has gone: of what plain decoding wrote, or of the longest reply before that."""
        if self.done(side):
            return 1.0
        plain = self.race.plain
        return self.tokens(side) / max(1, len(plain.tokens) if plain.finished else longest)

    @property
    def _beside(self) -> bool:
        """Plain decoding has run and is played again, beside the other side or because it was left behind."""
        speculating = self.race.speculative.started is not None or self.race.running == "speculative"
        return speculating and self.race.phase not in ("failed", "stopped")

    def _since(self, side: Side) -> float:
        return self._clock() - self._zero[side] if side in self._zero else 0.0
