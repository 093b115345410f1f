"""A real pseudo-terminal with the real program in it, and the screen as a person would see it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping

import pexpect
import pyte

FIGURES = r"\d+\stok\s·\s\d"
"""The line of figures under a reply that is complete."""


def _without_size(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables without a size: pytest's workers inherit one from readline, and it hides the terminal's own."""
    return {name: value for name, value in environment.items() if name not in ("COLUMNS", "LINES")}


class Terminal:
    """Runs `specchat …` at a size, types into it, and reads the screen."""

    def __init__(self, arguments: list[str], columns: int = 120, rows: int = 40, **environment: str) -> None:
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        self.process = pexpect.spawn(
            sys.executable,
            ["-m", "specchat", *arguments],
            dimensions=(rows, columns),
            env=_without_size(os.environ) | {"TERM": "xterm-256color", "COLORTERM": "truecolor", **environment},
            timeout=60,
        )

    @property
    def text(self) -> str:
        """The screen's lines, after whatever has arrived was drawn."""
        self._take()
        return "\n".join(self._screen.display)

    def type(self, keys: str) -> None:
        self.process.send(keys)

    def until(self, seen: Callable[[str], bool] | str, patience_s: float = 60.0, every_s: float = 0.05) -> str:
        """Wait until the screen shows something; fail with the screen where it never does."""
        shows = seen if callable(seen) else lambda text: seen in text
        end = time.monotonic() + patience_s
        while not shows(text := self.text):
            if time.monotonic() > end or (not self.process.isalive() and not shows(self.text)):
                raise AssertionError(f"waited for {seen!r} and saw:\n{text}")
            time.sleep(every_s)
        return text

    def gone(self, patience_s: float = 60.0) -> int | None:
        """The exit code, once the program has left."""
        end = time.monotonic() + patience_s
        while self.process.isalive() and time.monotonic() < end:
            self._take()
            time.sleep(0.05)
        assert not self.process.isalive(), f"still there:\n{self.text}"
        self._take()
        self.process.close()
        return self.process.exitstatus

    def close(self) -> None:
        if self.process.isalive():
            self.process.kill(signal.SIGKILL)
        self.process.close(force=True)

    def _take(self) -> None:
        if self.process.closed:
            return
        try:
            while True:
                self._stream.feed(self.process.read_nonblocking(65536, timeout=0))
        except (pexpect.TIMEOUT, pexpect.EOF):
            return
