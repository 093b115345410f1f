"""Lowers the app's priority beside an engine that uses every core, so that drawing does not slow it down."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from specchat.engine.protocol.events import Ready

NICENESS = 5
"""Niceness of the drawing thread. Linux gives a thread of niceness 0 three times its share of a core."""

_PER_THREAD = sys.platform == "linux"
"""Elsewhere niceness is the whole process's, an engine started later would inherit it, and there is no way back."""

T = TypeVar("T")


class EnginePriority:
    """Lowers the priority of the drawing thread for good, and starts engines from a thread of normal priority."""

    def __init__(self) -> None:
        self._lowered = False
        self._starter: ThreadPoolExecutor | None = None
        if _PER_THREAD:
            self._starter = ThreadPoolExecutor(1, "engine-start")
            self._starter.submit(lambda: None)  # a thread inherits the niceness of its creator, so it starts now

    async def start(self, engine: Callable[[], T]) -> T:
        """Start an engine at full priority."""
        if self._starter is None:
            return engine()
        return await asyncio.wrap_future(self._starter.submit(engine))

    def lower_priority(self) -> None:
        """Draw at a lower priority from now on."""
        if _PER_THREAD and not self._lowered:
            self._lowered = True
            os.nice(NICENESS)

    def close(self) -> None:
        """No engine will be started any more."""
        if self._starter is not None:
            self._starter.shutdown(wait=False)


def wants_every_core(ready: Ready) -> bool:
    """Whether the engine has a thread on every core of this machine."""
    return ready.device == "cpu" and ready.threads >= (os.cpu_count() or 1)
