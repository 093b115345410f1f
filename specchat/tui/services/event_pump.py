"""Schedules ticks, which take a small share of a core at most, and garbage collections for when the app is idle.

Removed views refer to each other, so only a full collection frees them. With a long chat that takes 100 to 250 ms, and
Python would run one every few frames while messages are mounted and removed.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable

from specchat.tui.textual_patches.compositing import clear_style_cache

FRAME_S = 1 / 20
SHARED_FRAME_S = 1 / 10
"""The same while an engine on this machine uses every core, which drawing would slow down."""

REST_FACTOR = 10.0  # a tick that took 1 ms is followed by a pause of at least 10 ms
SHARED_REST_FACTOR = 20.0
LONGEST_REST_S = 0.25  # a single slow tick must not look like a stall


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
        self._tick_scheduled = self._busy = self._waiting = False
        self._not_before = self._begun = 0.0
        self._drawn: dict[str, float] = {}  # when each part with a limited rate was last drawn
        self._redraw_at: float | None = None  # when the next of them has to be drawn; None: nothing is pending
        self._redraw_timer: asyncio.TimerHandle | None = None  # an event that arrives before it does not wait for it

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()

    @property
    def idle(self) -> bool:
        """Whether no event, no drawing and no later redraw is pending."""
        return not (self._tick_scheduled or self._busy or self._waiting or self._redraw_at is not None)

    def is_due(self, what: str, every_s: float) -> bool:
        """Whether to draw this part now; if it was drawn less than `every_s` ago, a later tick is scheduled."""
        now = self._clock()
        due = self._drawn.get(what, 0.0) + every_s
        if due > now:
            self._schedule_redraw(due)
            return False
        self._drawn[what] = now
        return True

    def mark_drawn(self, what: str, for_s: float) -> None:
        """Record that this part was drawn now, and schedule a tick in `for_s` seconds."""
        self._drawn[what] = self._clock()
        self._schedule_redraw(self._drawn[what] + for_s)

    def wake(self) -> None:
        """Report that an event arrived. Cheap, and safe from any thread."""
        if self._tick_scheduled:
            return
        self._tick_scheduled = True
        assert self._loop is not None, "the app is running before anything arrives"
        try:
            self._loop.call_soon_threadsafe(self._schedule_tick)
        except RuntimeError:  # the loop is closed: the app has ended
            return

    def begin(self) -> bool:
        """Begin a tick; later events need another one. Returns whether a redraw was scheduled for it."""
        self._busy, self._tick_scheduled = True, False
        self._disarm_redraw()
        self._begun = self._cost()
        owed, self._redraw_at = self._redraw_at is not None, None
        return owed

    def end(self) -> None:
        """End a tick and its drawing; the pause after it is proportional to its cost."""
        spent_s = self._cost() - self._begun
        now = self._clock()
        rest_s = min(LONGEST_REST_S, (SHARED_REST_FACTOR if self.shared else REST_FACTOR) * spent_s)
        self._not_before = now + max(SHARED_FRAME_S if self.shared else FRAME_S, rest_s)
        self._busy = False
        if self._waiting:
            self._waiting = False
            self._schedule_tick()
        else:
            self._arm_redraw(now)

    def _schedule_redraw(self, at: float) -> None:
        self._redraw_at = at if self._redraw_at is None else min(at, self._redraw_at)
        if not self._busy:  # drawn between ticks, after a key: no end of a tick arms it
            self._arm_redraw(self._clock())

    def _arm_redraw(self, now: float) -> None:
        self._disarm_redraw()
        if self._redraw_at is not None:
            self._redraw_timer = asyncio.get_running_loop().call_later(max(0.0, self._redraw_at - now), self._redraw)

    def _redraw(self) -> None:
        self._redraw_timer = None
        if not self._tick_scheduled:
            self._tick_scheduled = True
            self._schedule_tick()

    def _disarm_redraw(self) -> None:
        if self._redraw_timer is not None:
            self._redraw_timer.cancel()
            self._redraw_timer = None

    def _schedule_tick(self) -> None:
        if self._busy:
            self._waiting = True
        else:
            asyncio.get_running_loop().call_later(max(0.0, self._not_before - self._clock()), self._tick)


IDLE_S = 0.8
"""The idle time before a collection."""

MANY_COLLECTIONS = 5
"""Younger collections since the last full one, each about 20 000 surviving objects."""

THRESHOLDS = 2_000, 10, 500
"""Thresholds of Python's own collections, which remain for an app that is never idle."""


class GarbageCollection:
    """Schedules collections. There is no timer unless one is scheduled."""

    def __init__(self, is_idle: Callable[[], bool]) -> None:
        self._is_idle = is_idle
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """After the first paint: exclude all existing objects from later collections.

        They stay to the end. About a megabyte of them is garbage; finding it would take longer than the paint.
        """
        gc.freeze()
        gc.set_threshold(*THRESHOLDS)
        gc.enable()

    def schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(IDLE_S, self._collect_if_idle)

    def collect_if_many(self) -> None:
        """Collect now if there were many younger collections; called while the engine reads the prompt."""
        if gc.get_count()[2] >= MANY_COLLECTIONS:
            _collect()

    def _collect_if_idle(self) -> None:
        self._timer = None
        if self._is_idle():
            _collect()
        else:
            self.schedule()


def _collect() -> None:
    clear_style_cache()
    gc.collect()
