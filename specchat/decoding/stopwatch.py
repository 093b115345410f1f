"""The clock of a reply: it stops while the reply is held, so that pauses do not count in its speed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Seconds since `start`, those spent inside `stopped` apart."""

    def __init__(self) -> None:
        self._began = self._stopped = time.perf_counter()

    def start(self) -> None:
        """Begin at zero."""
        self._began = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds since the start, pauses left out."""
        return time.perf_counter() - self._began

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """The clock stands still inside."""
        self.stop()
        try:
            yield
        finally:
            self.go_on()

    def stop(self) -> None:
        """Stand still until `go_on`."""
        self._stopped = time.perf_counter()

    def go_on(self) -> None:
        """Go on from where it stopped."""
        self._began += time.perf_counter() - self._stopped
