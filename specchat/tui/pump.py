"""When to look for events: at most twenty times a second, never more than a tenth of a core, never when idle."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

FRAME_S = 1 / 20
REST = 10.0  # a tick that took one millisecond is followed by ten milliseconds of rest, at least
LONGEST_REST_S = 0.25  # one costly tick (a large block was drawn) must not look like a stall


class Pump:
    """Turns wake-up calls from any thread into ticks of the app, one at a time.

    There is no timer while nothing arrives: the first wake-up arms one call, the tick disarms it.
    """

    def __init__(
        self,
        tick: Callable[[], object],
        clock: Callable[[], float] = time.monotonic,
        cost: Callable[[], float] = time.thread_time,
    ) -> None:
        self._tick = tick
        self._clock = clock
        self._cost = cost
        self._loop = asyncio.get_running_loop()
        self._armed = self._busy = self._waiting = False
        self._not_before = self._begun = 0.0

    def wake(self) -> None:
        """Something arrived. Cheap, and safe from any thread."""
        if self._armed:
            return
        self._armed = True
        try:
            self._loop.call_soon_threadsafe(self._arm)
        except RuntimeError:  # the loop is closed: the app has left, nobody is listening
            return

    def begin(self) -> None:
        """The tick begins to look; whatever arrives from now on needs another tick."""
        self._busy, self._armed = True, False
        self._begun = self._cost()

    def end(self) -> None:
        """The tick and its drawing are done; rest in proportion to what they cost."""
        rest_s = min(LONGEST_REST_S, REST * (self._cost() - self._begun))
        self._not_before = self._clock() + max(FRAME_S, rest_s)
        self._busy = False
        if self._waiting:
            self._waiting = False
            self._arm()

    def _arm(self) -> None:
        if self._busy:
            self._waiting = True
        else:
            self._loop.call_later(max(0.0, self._not_before - self._clock()), self._tick)
