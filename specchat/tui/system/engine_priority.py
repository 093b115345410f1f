"""The app gives way to an engine that wants every core: it draws when the engine waits, not instead of it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from specchat.engine.protocol.events import Ready

STEPS_BACK = 5
"""Niceness of the drawing thread. Linux gives a thread of niceness 0 three times as much of a core."""

_PER_THREAD = sys.platform == "linux"
"""Elsewhere niceness is the whole process's, an engine started later would inherit it, and there is no way back."""

T = TypeVar("T")


class EnginePriority:
    """Steps back once, for good, and starts engines from a thread that never did."""

    def __init__(self) -> None:
        self._back = False
        self._starter: ThreadPoolExecutor | None = None
        if _PER_THREAD:
            self._starter = ThreadPoolExecutor(1, "engine-start")
            self._starter.submit(lambda: None)  # a thread has the niceness of who starts it: now, not later

    async def start(self, engine: Callable[[], T]) -> T:
        """Start an engine at full priority."""
        if self._starter is None:
            return engine()
        return await asyncio.wrap_future(self._starter.submit(engine))

    def give_way(self) -> None:
        """Draw at a lower priority from now on."""
        if _PER_THREAD and not self._back:
            self._back = True
            os.nice(STEPS_BACK)

    def close(self) -> None:
        """No engine will be started any more."""
        if self._starter is not None:
            self._starter.shutdown(wait=False)


def wants_every_core(ready: Ready) -> bool:
    """Whether an engine on this machine leaves no core to draw on."""
    return ready.device == "cpu" and ready.threads >= (os.cpu_count() or 1)
