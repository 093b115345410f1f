"""Runs specchat's own commands as child processes, so that long ones do not block the app and can be cancelled."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable
from contextlib import suppress

from specchat.engine.protocol.text import visible

_PATIENCE_S = 3.0


def own_command(*words: str) -> list[str]:
    """The command line of a specchat command, with the same interpreter."""
    return [sys.executable, "-m", "specchat", *words]


class OwnProcess:
    """One running command; `on_line` gets each line of its output."""

    def __init__(self, command: list[str], on_line: Callable[[bytes], None] = lambda line: None) -> None:
        self.cancelled = False
        self.words: list[str] = []  # lines of standard error, safe to show
        self._command = command
        self._on_line = on_line
        self._process: Process | None = None

    async def run(self) -> bool:
        """Run the command to its end; True on success."""
        process = self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, start_new_session=True
        )
        if self.cancelled:
            process.terminate()
        assert process.stdout is not None, "it was started with a pipe"
        assert process.stderr is not None, "it was started with a pipe"
        said, _ = await asyncio.gather(process.stderr.read(), self._listen(process.stdout))
        self.words = [visible(line) for line in said.decode(errors="replace").splitlines() if line.strip()]
        return await process.wait() == 0

    def cancel(self) -> None:
        """Ask the command to stop."""
        self.cancelled = True
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.terminate()

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
        return self.words[-1].removeprefix("specchat: ") if self.words else "it ended without a word"

    async def _listen(self, stdout: asyncio.StreamReader) -> None:
        while line := await stdout.readline():
            self._on_line(line)
