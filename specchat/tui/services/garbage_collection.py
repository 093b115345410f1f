"""Runs full garbage collections while the app is idle, not in the middle of a frame.

Removed views refer to each other, so only a full collection frees them. With a long chat that takes 100 to 250 ms, and
Python would run one every few frames while messages are mounted and removed.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

from specchat.tui.textual_patches.compositing import clear_style_cache

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
        """Collect once the app is idle."""
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
