"""When to look for events and what to draw: never more than a small share of a core, never when idle."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

FRAME_S = 1 / 20
SHARED_FRAME_S = 1 / 10
"""While an engine on this machine has a thread on every core: what drawing takes, it takes from the engine."""

REST = 10.0  # a tick that took one millisecond is followed by ten milliseconds of rest, at least
SHARED_REST = 20.0
LONGEST_REST_S = 0.25  # one costly tick (a large block was drawn) must not look like a stall
RECENT_S = 2.0


class EventPump:
    """Turns wake-up calls from any thread into ticks of the app, one at a time.

    There is no timer while nothing arrives: the first wake-up arms one call, the tick disarms it.
    """

    def __init__(
        self,
        tick: Callable[[], object],
        clock: Callable[[], float] = time.monotonic,
        cost: Callable[[], float] = time.thread_time,
    ) -> None:
        self.shared = False
        """Whether an engine wants every core of this machine."""
        self._tick = tick
        self._clock = clock
        self._cost = cost
        self._loop: asyncio.AbstractEventLoop | None = None
        self._armed = self._busy = self._waiting = False
        self._not_before = self._begun = 0.0
        self._drawn: dict[str, float] = {}  # when each thing that is not drawn at every tick was drawn
        self._owed: float | None = None  # when the next of them is due
        self._spent: deque[tuple[float, float]] = deque()  # when a tick ended, and its cost

    def start(self) -> None:
        """The app is running: ticks happen on its event loop from now on."""
        self._loop = asyncio.get_running_loop()

    @property
    def idle(self) -> bool:
        """Nothing arrived, nothing is being drawn, nothing is owed."""
        return not (self._armed or self._busy or self._waiting or self._owed is not None)

    @property
    def share(self) -> float:
        """The share of one core that drawing took of late."""
        if len(self._spent) < 2:
            return 0.0
        begun = self._spent[0][0]
        seconds = self._spent[-1][0] - begun
        return sum(cost for at, cost in self._spent if at > begun) / seconds if seconds > 0 else 0.0

    def due(self, what: str, every_s: float) -> bool:
        """Whether to draw this now; if it was drawn just now, another tick will come for it."""
        now = self._clock()
        due = self._drawn.get(what, 0.0) + every_s
        if due > now:
            self._owe(due)
            return False
        self._drawn[what] = now
        return True

    def drawn(self, what: str, for_s: float) -> None:
        """This was drawn now, and for so long: then another tick will come for it."""
        self._drawn[what] = self._clock()
        self._owe(self._drawn[what] + for_s)

    def wake(self) -> None:
        """Something arrived. Cheap, and safe from any thread."""
        if self._armed:
            return
        self._armed = True
        assert self._loop is not None, "the app is running before anything arrives"
        try:
            self._loop.call_soon_threadsafe(self._arm)
        except RuntimeError:  # the loop is closed: the app has left, nobody is listening
            return

    def begin(self) -> bool:
        """The tick begins to look; whatever arrives from now on needs another tick. Says whether drawing is owed."""
        self._busy, self._armed = True, False
        self._begun = self._cost()
        owed, self._owed = self._owed is not None, None
        return owed

    def end(self) -> None:
        """The tick and its drawing are done; rest in proportion to what they cost."""
        spent_s = self._cost() - self._begun
        now = self._clock()
        self._remember(now, spent_s)
        rest_s = min(LONGEST_REST_S, (SHARED_REST if self.shared else REST) * spent_s)
        self._not_before = now + max(SHARED_FRAME_S if self.shared else FRAME_S, rest_s)
        self._busy = False
        if self._waiting:
            self._waiting = False
            self._arm()
        elif self._owed is not None and not self._armed:
            self._armed = True
            asyncio.get_running_loop().call_later(max(0.0, self._owed - now), self._arm)

    def _owe(self, at: float) -> None:
        self._owed = at if self._owed is None else min(at, self._owed)

    def _arm(self) -> None:
        if self._busy:
            self._waiting = True
        else:
            asyncio.get_running_loop().call_later(max(0.0, self._not_before - self._clock()), self._tick)

    def _remember(self, now: float, spent_s: float) -> None:
        if self._spent and now - self._spent[-1][0] > RECENT_S:
            self._spent.clear()  # there was a pause: what was before it is of no interest
        self._spent.append((now, spent_s))
        while now - self._spent[0][0] > RECENT_S:
            self._spent.popleft()
