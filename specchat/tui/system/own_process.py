"""specchat's own commands, run beside the app: what takes long never holds the screen, and can be called off."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable
from contextlib import suppress

from specchat.engine.protocol.text import visible

_PATIENCE_S = 3.0


def own_command(*words: str) -> list[str]:
    """The command line of one of our own commands, by the interpreter that runs us."""
    return [sys.executable, "-m", "specchat", *words]


class OwnProcess:
    """One command on its way; its lines are told as they come."""

    def __init__(self, command: list[str], on_line: Callable[[bytes], None] = lambda line: None) -> None:
        self.called_off = False
        self.words: list[str] = []  # what it wrote to standard error, safe to show
        self._command = command
        self._on_line = on_line
        self._process: Process | None = None

    async def run(self) -> bool:
        """Run it to its end; whether it did what it was asked."""
        process = self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, start_new_session=True
        )
        if self.called_off:
            process.terminate()
        assert process.stdout is not None, "it was started with a pipe"
        assert process.stderr is not None, "it was started with a pipe"
        said, _ = await asyncio.gather(process.stderr.read(), self._listen(process.stdout))
        self.words = [visible(line) for line in said.decode(errors="replace").splitlines() if line.strip()]
        return await process.wait() == 0

    def call_off(self) -> None:
        """Ask it to stop; what it has done so far stays."""
        self.called_off = True
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.terminate()

    async def end(self) -> None:
        """Make it stop."""
        self.call_off()
        if self._process is not None and self._process.returncode is None:
            try:
                await asyncio.wait_for(self._process.wait(), _PATIENCE_S)
            except TimeoutError:
                self._process.kill()

    @property
    def last_words(self) -> str:
        """Why it failed, in one line."""
        return self.words[-1].removeprefix("specchat: ") if self.words else "it ended without a word"

    async def _listen(self, stdout: asyncio.StreamReader) -> None:
        while line := await stdout.readline():
            self._on_line(line)
