"""Reads a pipe a limited number of times a second: what arrives in between comes together.

Each read wakes this process, which takes a core away from an engine that uses all of them. Small models write hundreds
of events a second, and the screen is drawn a few times.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable
from typing import IO

APART_S = 0.02
"""Seconds from one read to the next, at least. What comes after a longer silence comes at once."""

_AT_ONCE_BYTES = 1 << 17
"""More than a pipe holds."""


def rate_limited(
    stream: IO[bytes], clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], object] = time.sleep
) -> IO[bytes]:
    """The same bytes, from the pipe below the stream; what the stream holds itself is not seen."""
    return io.BufferedReader(_RateLimited(stream, clock, sleep), _AT_ONCE_BYTES)


class _RateLimited(io.RawIOBase):
    def __init__(self, stream: IO[bytes], clock: Callable[[], float], sleep: Callable[[float], object]) -> None:
        self._stream = stream  # kept open
        self._clock, self._sleep = clock, sleep
        self._not_before = 0.0

    def readable(self) -> bool:
        return True

    def readinto(self, room: memoryview) -> int:  # type: ignore[override]
        early_s = self._not_before - self._clock()
        if early_s > 0:
            self._sleep(early_s)
        data = os.read(self._stream.fileno(), len(room))
        self._not_before = self._clock() + APART_S
        room[: len(data)] = data
        return len(data)
