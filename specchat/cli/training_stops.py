"""How a training is told to stop, and a clock that stands while the training is paused."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

_STOPS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
_GOES_ON = getattr(signal, "SIGCONT", None)
_PARENT_DEATH = 1
"""PR_SET_PDEATHSIG of prctl(2)."""


class RunningClock:
    """Seconds while the process runs; the time from the last reading before a pause to its end does not count."""

    def __init__(self) -> None:
        self.pauses = 0
        self._paused_s = 0.0
        self._last_s = time.monotonic()

    def __call__(self) -> float:
        self._last_s = time.monotonic()
        return self._last_s - self._paused_s

    def goes_on(self) -> None:
        """The process runs again after a pause."""
        self.pauses += 1
        self._paused_s += time.monotonic() - self._last_s
        self._last_s = time.monotonic()


@contextmanager
def stoppable(clock: RunningClock, *, at_eof: bool) -> Iterator[None]:
    """Be told to stop as by Ctrl+C: by a signal to end, by a terminal that goes away, by the end of standard input.

    Args:
        clock: told of pauses.
        at_eof: whether the end of standard input is heeded. A program that starts the training holds the other end: if
            it crashes the training ends in order, even if it was paused then.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        for other in _STOPS:  # what is being written now is written to its end
            signal.signal(other, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in _STOPS}
    if _GOES_ON is not None:
        before[_GOES_ON] = signal.signal(_GOES_ON, lambda *_: clock.goes_on())
    if at_eof:
        if sys.platform == "linux":
            import ctypes

            with suppress(OSError, AttributeError):
                ctypes.CDLL(None).prctl(_PARENT_DEATH, int(signal.SIGCONT))
        threading.Thread(target=_stop_at_eof, name="stop-at-eof", daemon=True).start()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop_at_eof() -> None:
    with suppress(OSError):
        while os.read(0, 4096):
            pass
    os.kill(os.getpid(), signal.SIGTERM)
