"""When memory is searched for what nobody needs any more: when nothing moves, not in the middle of a frame.

Views that left the screen refer to each other, so only a collection of everything frees them. With a long chat that
takes 100 to 250 ms, and Python's own come every few frames while messages come and go.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

from specchat.tui.textual_fixes.compositing import let_go

REST_S = 0.8
"""How long nothing must have happened."""

MUCH = 5
"""Young collections since the last one of everything, each about 20 000 objects that stayed."""

THRESHOLDS = 2_000, 10, 500
"""Python's own collections of everything remain as a net, for whoever never rests."""


class GarbageCollection:
    """Collects what was left behind. There is no timer while nothing was."""

    def __init__(self, resting: Callable[[], bool]) -> None:
        self._resting = resting
        self._soon: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """The first picture stands. What is there now stays to the end: no collection looks at it again.

        There is little garbage in it (a megabyte), and looking for that would take longer than painting took.
        """
        gc.freeze()
        gc.set_threshold(*THRESHOLDS)
        gc.enable()

    def soon(self) -> None:
        """Something was left behind; collect it once nothing moves."""
        if self._soon is not None:
            self._soon.cancel()
        self._soon = asyncio.get_running_loop().call_later(REST_S, self._if_resting)

    def between(self) -> None:
        """One thing has ended and the next is not to be seen yet: collect if much was left behind by now."""
        if gc.get_count()[2] >= MUCH:
            _collect()

    def _if_resting(self) -> None:
        self._soon = None
        if self._resting():
            _collect()
        else:
            self.soon()


def _collect() -> None:
    let_go()
    gc.collect()
