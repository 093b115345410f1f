"""Progress of a fetch, and how it is cancelled."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from specchat.errors import WeightsError

Stage = Literal["fetch", "verify"]


class Cancelled(WeightsError):
    """Fetching was stopped on request; what is complete stays, and the next fetch goes on from there."""

    exit_code = 130


@dataclass(frozen=True)
class Progress:
    """How far one item is. `total` 0 means unknown; `rate` is in bytes per second."""

    stage: Stage
    item: str
    done: int = 0
    total: int = 0
    rate: float = 0.0


OnProgress = Callable[[Progress], None]
IsCancelled = Callable[[], bool]


@dataclass
class Meter:
    """Bytes of one item as they come in; says so at most every tenth of a second, and stops when cancelled.

    The count never goes back, although a wheel's bytes are only an estimate of its member's.
    """

    stage: Stage
    item: str
    total: int
    on_progress: OnProgress
    cancelled: IsCancelled
    _seen: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=32))
    _done: int = 0
    _last: float = 0.0

    def at(self, done: int, *, at_once: bool = False) -> None:
        """The item has this many bytes now."""
        self.stop_if_cancelled()
        self._done = max(self._done, min(done, self.total) if self.total else done)
        now = time.monotonic()
        if not at_once and now - self._last < 0.1:
            return
        self._last = now
        self._seen.append((now, self._done))
        self.on_progress(Progress(self.stage, self.item, self._done, self.total, self._rate()))

    def stop_if_cancelled(self) -> None:
        """Raise Cancelled if the fetch was cancelled."""
        if self.cancelled():
            raise Cancelled(f"stopped at {self.item}; the next pull goes on from there")

    def _rate(self) -> float:
        (first_s, first), (last_s, last) = self._seen[0], self._seen[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else 0.0
