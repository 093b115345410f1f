"""A race as it is watched: both sides from one start, each by its own clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from specchat.engine.near.race import Race, Side
from specchat.engine.protocol.commands import Command
from specchat.engine.protocol.events import Event


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


class RacePlayback:
    """Which rounds are to be seen now.

    The engine writes by turns; what is shown is where both sides were after the same time of their own. While they are
    written that time is the one that is less far; once both are there it goes on by itself, up to the slower one's end.

    Args:
        clock: seconds; only differences count.
    """

    def __init__(self, race: Race, clock: Callable[[], float]) -> None:
        self.race = race
        self._clock = clock
        self._written: tuple[float, float] | None = None  # when both were there, and which time was shown then
        self._skipped = False

    def hear(self, event: Event) -> Command | None:
        """Learn from one event; what to send next, if anything."""
        command = self.race.hear(event)
        if self._written is None and all(heat.finished for heat in self.race.heats.values()):
            self._written = self._clock(), min(heat.decode_s for heat in self.race.heats.values())
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
        return self.race.ended and all(self.seen(side) == len(heat.rounds) for side, heat in self.race.heats.items())

    def skip(self) -> None:
        """Show the end of what is only played again; a race that runs goes on at its own pace."""
        self._skipped = self.race.running is None

    def seen(self, side: Side) -> int:
        """How many rounds of a side are to be shown."""
        heat = self.race.heats[side]
        return sum(round.at_s - heat.began_s <= self._time for round in heat.rounds)

    def elapsed(self, side: Side) -> float:
        """Seconds of decoding a side shows."""
        return min(self._time, self.race.heats[side].decode_s)

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
    def _time(self) -> float:
        """The seconds of decoding that are shown."""
        if self._skipped or self.race.phase in ("failed", "stopped"):
            return math.inf
        if self._written is not None:
            then, shown_s = self._written
            return shown_s + self._clock() - then
        return min((heat.decode_s for heat in self.race.heats.values() if heat.finished is None), default=math.inf)
