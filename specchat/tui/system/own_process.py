"""Runs specchat's own commands as child processes, so that long ones do not block the app and can be cancelled."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from specchat.engine.protocol.text import visible

_PATIENCE_S = 3.0
_LOWEST_PRIORITY = 19
_LONGEST_LINE_BYTES = 1 << 20


def own_command(*words: str) -> list[str]:
    """The command line of a specchat command, with the same interpreter."""
    return [sys.executable, "-m", "specchat", *words]


class OwnProcess:
    """One running command; `on_line` gets each line of its output.

    With `in_background` it has the lowest priority, can be paused, and has a standard input whose end stops it; it
    stays in our session, because Linux weighs sessions against each other before it looks at priorities.
    """

    def __init__(
        self,
        command: list[str],
        on_line: Callable[[bytes], None] = lambda line: None,
        *,
        in_background: bool = False,
    ) -> None:
        self.cancelled = False
        self.paused = False
        self._in_background = in_background
        self.words: list[str] = []  # lines of standard error, safe to show
        self._command = command
        self._on_line = on_line
        self._process: Process | None = None

    async def run(self) -> bool:
        """Run the command to its end; True on success."""
        apart: dict[str, Any] = {"stdin": DEVNULL, "start_new_session": True}
        if self._in_background:
            apart = {"stdin": PIPE, "process_group": 0}
        process = self._process = await asyncio.create_subprocess_exec(
            *self._command, stdout=PIPE, stderr=PIPE, limit=_LONGEST_LINE_BYTES, **apart
        )
        if self._in_background:
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, process.pid, _LOWEST_PRIORITY)  # threads it starts inherit it
        if self.cancelled:
            self.cancel()
        assert process.stdout is not None, "it was started with a pipe"
        assert process.stderr is not None, "it was started with a pipe"
        said, _ = await asyncio.gather(process.stderr.read(), self._listen(process.stdout))
        self.words = [visible(line) for line in said.decode(errors="replace").splitlines() if line.strip()]
        return await process.wait() == 0

    @property
    def pid(self) -> int | None:
        """Its number while it runs."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    def cancel(self) -> None:
        """Ask the command to stop."""
        self.cancelled = True
        if self._process is None or self._process.returncode is not None:
            return
        if self._process.stdin is not None:
            self._process.stdin.close()
            self.pause(False)
        else:
            with suppress(ProcessLookupError):
                self._process.terminate()

    def pause(self, paused: bool) -> None:
        """Suspend the command and what it has started, or let them go on."""
        if paused != self.paused and (pid := self.pid) is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGSTOP if paused else signal.SIGCONT)
            self.paused = paused

    async def end(self) -> None:
        """Stop the command, by force if it does not react."""
        self.cancel()
        if self._process is not None and self._process.returncode is None:
            try:
                await asyncio.wait_for(self._process.wait(), _PATIENCE_S)
            except TimeoutError:
                self._process.kill()

    @property
    def last_words(self) -> str:
        """The last line of standard error: why it failed."""
        return self.words[-1].removeprefix("specchat: ") if self.words else "it ended without an error message"

    async def _listen(self, stdout: asyncio.StreamReader) -> None:
        try:
            while line := await stdout.readline():
                self._on_line(line)
        except ValueError:  # a line longer than any that is meant
            assert self._process is not None, "it is listened to while it runs"
            self._process.kill()
