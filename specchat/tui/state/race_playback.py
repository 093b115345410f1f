"""The playback of a race: both sides start together, and each is shown by its own decoding time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from specchat.engine.client.race import Race, Side
from specchat.engine.protocol.commands import Command
from specchat.engine.protocol.events import Event

_SHORTEST_BAR = 64


@dataclass(frozen=True)
class RaceSetup:
    """The pair in use, its number format, and the settings that hold for the race."""

    pair: str
    dtype: str
    settings: Mapping[str, Any]

    @property
    def max_tokens(self) -> int:
        """The longest reply the settings allow, in tokens."""
        return int(self.settings.get("max_tokens", 0))


class RacePlayback:
    """Which rounds of a race are shown now.

    The engine decodes both sides alternately. Shown is the state of both after the same decoding time. While they are
    decoded, that is the smaller of the two times; once both are complete, it runs on to the end of the slower side.

    Args:
        clock: seconds; only differences count.
    """

    def __init__(self, race: Race, clock: Callable[[], float]) -> None:
        self.race = race
        self._clock = clock
        self._written_at: tuple[float, float] | None = None  # when both were complete, and the decoding time shown then
        self._skipped = False

    def apply(self, event: Event) -> Command | None:
        """Take one event; returns the next command to send, if any."""
        command = self.race.hear(event)
        if self._written_at is None and all(heat.finished for heat in self.race.heats.values()):
            self._written_at = self._clock(), min(heat.decode_s for heat in self.race.heats.values())
        return command

    def stop(self) -> Command | None:
        """The command that stops it; None if nothing runs."""
        return self.race.stop()

    @property
    def moving(self) -> bool:
        """Whether the picture changes without new events."""
        return not self.race.ended or not self.finished

    @property
    def finished(self) -> bool:
        """Whether all rounds of both sides are shown."""
        return self.race.ended and all(
            self.shown_rounds(side) == len(heat.rounds) for side, heat in self.race.heats.items()
        )

    def skip(self) -> None:
        """Show the end at once; without effect while the engine still decodes."""
        self._skipped = self.race.running is None

    def shown_rounds(self, side: Side) -> int:
        """How many rounds of a side are shown."""
        heat = self.race.heats[side]
        return sum(round.at_s - heat.began_s <= self._shown_s for round in heat.rounds)

    def elapsed(self, side: Side) -> float:
        """Seconds of decoding that are shown of a side."""
        return min(self._shown_s, self.race.heats[side].decode_s)

    def done(self, side: Side) -> bool:
        """Whether a side is shown to its end."""
        heat = self.race.heats[side]
        return heat.finished is not None and self.shown_rounds(side) == len(heat.rounds)

    def tokens(self, side: Side) -> int:
        """Tokens of the rounds that are shown."""
        return sum(len(round.pieces) for round in self.race.heats[side].rounds[: self.shown_rounds(side)])

    @property
    def full_bar_tokens(self) -> int:
        """How many tokens fill a bar, of either side and from start to end: twice as many whenever a reply needs it."""
        written = max(len(heat.tokens) for heat in self.race.heats.values())
        return max(_SHORTEST_BAR, 1 << max(0, written - 1).bit_length())

    @property
    def length(self) -> int:
        """The tokens of the reply, once a side is complete; 0 before."""
        return max((len(heat.tokens) for heat in self.race.heats.values() if heat.finished), default=0)

    @property
    def _shown_s(self) -> float:
        """The seconds of decoding that are shown."""
        if self._skipped or self.race.phase in ("failed", "stopped"):
            return math.inf
        if self._written_at is not None:
            then, shown_s = self._written_at
            return shown_s + self._clock() - then
        return min((heat.decode_s for heat in self.race.heats.values() if heat.finished is None), default=math.inf)
