"""A pseudo-terminal that runs a program and counts the bytes it writes."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specchat.errors import SpecchatError

Size = tuple[int, int]


class Terminal:
    """One program in a pseudo-terminal of a size; everything it writes is read and counted at once."""

    def __init__(self, command: Sequence[str], size: Size, environment: Mapping[str, str] = {}) -> None:
        ours, theirs = pty.openpty()
        columns, lines = size
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.begun = time.monotonic()
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", **environment},
        )  # fmt: skip
        os.close(theirs)
        self._screen = ours
        self.written: list[tuple[float, int]] = []  # when, and how many bytes
        self.seen = b""

    def read(self, seconds: float) -> bytes:
        """What arrives within that time; empty at the end of the program."""
        if not select.select([self._screen], [], [], seconds)[0]:
            return b""
        try:
            data = os.read(self._screen, 65536)
        except OSError:
            return b""
        self.written.append((time.monotonic(), len(data)))
        self.seen = (self.seen + data)[-65536:]
        return data

    def type(self, keys: str) -> None:
        """Type these keys."""
        os.write(self._screen, keys.encode())

    def wait_for(self, words: str, patience_s: float = 60.0) -> float:
        """Seconds from the start until these words were written; infinity if they never were."""
        end = time.monotonic() + patience_s
        while time.monotonic() < end and (self.process.poll() is None or self.read(0)):
            self.read(0.05)
            if words.encode() in self.seen:
                return time.monotonic() - self.begun
        return float("inf")

    def wait_for_exit(self, patience_s: float) -> bool:
        """Read on until the program has left; False, and it is killed, if it does not."""
        end = time.monotonic() + patience_s
        while self.process.poll() is None and time.monotonic() < end:
            self.read(0.1)
        gone = self.process.poll() is not None
        self.close()
        return gone

    def cpu_s(self) -> float:
        """Processor seconds the program has used so far, all of its threads together; 0 where unknown."""
        try:
            fields = (
                Path(f"/proc/{self.process.pid}/stat")
                .read_text(encoding="utf-8", errors="replace")
                .rpartition(")")[2]
                .split()
            )
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def bytes_between(self, begun: float, ended: float) -> int:
        """Bytes written to the screen in that time."""
        return sum(count for at, count in self.written if begun <= at < ended)

    def close(self) -> None:
        """End the program if it is still there."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._screen)


def measured(size: Size, patience_s: float = 300.0, **scenario: Any) -> dict[str, Any]:
    """Run one scenario of `scenarios` in a process and terminal of its own; its result, with bytes per second."""
    result, terminal = _run_in_terminal(size, patience_s, "run", scenario)
    if "window" in result:
        begun, ended = result["window"]
        result["bytes_per_s"] = terminal.bytes_between(begun, ended) / (ended - begun)
    return result


def measured_engine(size: Size, app: bool, settings: dict[str, Any]) -> dict[str, Any]:
    """Replies of a real engine, with the app in a terminal of this size or without it."""
    return _run_in_terminal(size, 300.0, "run_engine", {"app": app, "settings": settings})[0]


def _run_in_terminal(
    size: Size, patience_s: float, function: str, values: dict[str, Any]
) -> tuple[dict[str, Any], Terminal]:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "result.json"
        code = f"from specchat.tui.bench.scenarios import {function}; {function}({str(target)!r}, **{values!r})"
        terminal = Terminal([sys.executable, "-c", code], size)
        gone = terminal.wait_for_exit(patience_s)
        if not gone or not target.exists():
            raise SpecchatError(f"the app did not get through this scenario in {patience_s:.0f} s: {values}")
        return json.loads(target.read_text(encoding="utf-8")), terminal
