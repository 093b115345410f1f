"""When the next round of the running reply may begin: at once, after a gap, or only when it is granted."""

from __future__ import annotations

from specchat.engine.protocol.commands import Pace


class Pacing:
    """Says how long to wait before the next round. A reply begins at full speed unless told before it began."""

    def __init__(self) -> None:
        self._pace = self._coming = Pace(id=-1)
        self._granted = 0

    def begin(self, id: int) -> None:
        """Reply `id` begins."""
        self._pace = self._coming if self._coming.id == id else Pace(id=id)
        self._coming = Pace(id=-1)  # what was said of one reply is not said of a later one with its number
        self._granted = self._pace.rounds

    def end(self) -> None:
        """No reply runs."""
        self._pace = Pace(id=-1)

    def take(self, pace: Pace) -> None:
        """Follow this pace from now on, or from the beginning of the reply it is about."""
        if pace.id != self._pace.id:
            self._coming = pace
            return
        still = self._granted if self._pace.hold and pace.hold else 0
        self._pace, self._granted = pace, still + pace.rounds

    def wait_s(self, rested_s: float) -> float | None:
        """Seconds until the next round may begin, `rested_s` after the last one; None: until the next `Pace`."""
        if not self._pace.hold:
            return max(0.0, self._pace.gap_s - rested_s)
        return 0.0 if self._granted > 0 else None

    def went(self) -> None:
        """A round begins."""
        self._granted = max(0, self._granted - 1)
