"""Processes: specchat's own commands as children that can be cancelled, and the processor time of engine and app.

Beside an engine that uses every core the app draws at a lower priority, so that drawing does not slow it down.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from specchat.engine.protocol.events import Ready
from specchat.engine.protocol.text import visible

_PATIENCE_S = 3.0
_LOWEST_PRIORITY = 19
_LONGEST_LINE_BYTES = 1 << 20


def own_command(*words: str) -> list[str]:
    return [sys.executable, "-m", "specchat", *words]


class OwnProcess:
    """One running command; `on_line` gets each line of its output.

    With `in_background` it has the lowest priority, can be paused, and has a standard input whose end stops it; it
    stays in our session, because Linux weighs sessions against each other before it looks at priorities.
    """

    def __init__(
        self, command: list[str], on_line: Callable[[bytes], None] = lambda line: None, *, in_background: bool = False
    ) -> None:
        self.cancelled = self.paused = False
        self.words: list[str] = []  # lines of standard error, safe to show
        self._command, self._on_line, self._in_background = command, on_line, in_background
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
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    def cancel(self) -> None:
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
        self._at = self._engine_s = self._app_s = 0.0
        self._pid = 0

    def read(self, pid: int) -> CoreShares | None:
        """The current shares; None for an engine on another machine, or where the system does not report them."""
        now = time.monotonic()
        if pid == self._pid and now - self._at < SPAN_S:
            return self.shares
        engine_s, app_s = spent_s(pid), time.process_time()
        if engine_s is None:
            self._pid, self.shares = 0, None
            return None
        if pid == self._pid:
            seconds = now - self._at
            self.shares = CoreShares((engine_s - self._engine_s) / seconds, (app_s - self._app_s) / seconds)
        self._pid, self._at, self._engine_s, self._app_s = pid, now, engine_s, app_s
        return self.shares


def spent_s(pid: int) -> float | None:
    """Processor seconds a process has used, all of its threads together; None where the system does not tell."""
    if pid <= 0:
        return None
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


NICENESS = 5
"""Niceness of the drawing thread. Linux gives a thread of niceness 0 three times its share of a core."""

_PER_THREAD = sys.platform == "linux"
"""Elsewhere niceness is the whole process's, an engine started later would inherit it, and there is no way back."""

T = TypeVar("T")


class EnginePriority:
    """Lowers the priority of the drawing thread for good, and starts engines from a thread of normal priority."""

    def __init__(self) -> None:
        self._lowered = False
        self._starter: ThreadPoolExecutor | None = None
        if _PER_THREAD:
            self._starter = ThreadPoolExecutor(1, "engine-start")
            self._starter.submit(lambda: None)  # a thread inherits the niceness of its creator, so it starts now

    async def start(self, engine: Callable[[], T]) -> T:
        if self._starter is None:
            return engine()
        return await asyncio.wrap_future(self._starter.submit(engine))

    def lower_priority(self) -> None:
        if _PER_THREAD and not self._lowered:
            self._lowered = True
            os.nice(NICENESS)


def wants_every_core(ready: Ready) -> bool:
    """Whether the engine has a thread on every core of this machine."""
    return ready.device == "cpu" and ready.threads >= (os.cpu_count() or 1)


async def in_daemon_thread(job: Callable[[], T]) -> T:
    """What a function returns or raises, on a thread that does not keep the app from ending."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # it cannot be cancelled any more

    def run() -> None:
        try:
            future.set_result(job())
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return await asyncio.wrap_future(future)
