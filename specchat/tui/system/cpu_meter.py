"""Measures how many cores the engine and the app use."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

SPAN_S = 1.0
"""The shortest time over which shares are averaged."""


@dataclass(frozen=True)
class CoreShares:
    """The number of cores in use: 2.0 is two cores all the time."""

    engine: float
    app: float


class CpuMeter:
    """Reads the processor time of both processes on request."""

    def __init__(self) -> None:
        self.shares: CoreShares | None = None
        self._at = 0.0
        self._engine_s = self._app_s = 0.0
        self._pid = 0

    def read(self, pid: int) -> CoreShares | None:
        """The current shares; None for an engine on another machine, or where the system does not report them."""
        now = time.monotonic()
        if pid == self._pid and now - self._at < SPAN_S:
            return self.shares
        engine_s, app_s = _spent_s(pid), time.process_time()
        if engine_s is None:
            self._pid, self.shares = 0, None
            return None
        if pid == self._pid:
            seconds = now - self._at
            self.shares = CoreShares((engine_s - self._engine_s) / seconds, (app_s - self._app_s) / seconds)
        self._pid, self._at, self._engine_s, self._app_s = pid, now, engine_s, app_s
        return self.shares


def _spent_s(pid: int) -> float | None:
    """Processor seconds a process has used, all of its threads together."""
    if pid <= 0:
        return None
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None
