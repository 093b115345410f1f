"""Links to an engine: a process that is started here, or another client of one that runs. Imports no torch.

The engine may be a child process here or `ssh box specchat engine`; this side knows no difference.
"""

from __future__ import annotations

import io
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, NoReturn, Protocol, TypeVar

import msgspec

from specchat.config.kept_files import read_end
from specchat.engine.protocol.codec import EventReader, encode, lines_of, wrong_greeting
from specchat.engine.protocol.commands import Command, Quit
from specchat.engine.protocol.environment import engine_environment
from specchat.engine.protocol.events import Died, Event, Failed
from specchat.errors import EngineError, SpecchatError, short
from specchat.models.weights.foreign_code import ENDED_BY, MAPPED_FILE_LOST

_Item = TypeVar("_Item")


def take_all(waiting: queue.SimpleQueue[_Item]) -> list[_Item]:
    """All items that wait now, oldest first; returns at once."""
    items: list[_Item] = []
    while True:
        try:
            items.append(waiting.get_nowait())
        except queue.Empty:
            return items


_SIGNALS = {
    ENDED_BY: "the model's tokenizer or chat template used up its processor time and was ended",
    MAPPED_FILE_LOST: "a model's file could no longer be read: it was shortened or replaced, or its disk failed",
    getattr(signal, "SIGKILL", None): "it was killed, as the system does when memory runs out",
}
"""Causes of death that an engine which a signal ended cannot say itself."""

_LOOK_UP_S = 0.25
"""Waiting for an event is resumed so often. A signal that comes in the few microseconds before a wait begins does not
end it, and Ctrl+C would have no effect until the next event (measured: 15 of 926 signals at random moments)."""


class EngineFailure(SpecchatError):
    """The engine's own one-line failure, with its exit code."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed.message)
        self.exit_code = failed.exit_code


def raise_death(event: Died) -> NoReturn:
    """Raise an engine's death as an error, with its last message."""
    last = event.last_words.strip().split("\n")[-1]
    code = "" if event.returncode is None else f" (exit code {event.returncode})"
    raise EngineError(f"the engine died{code}{f': {last}' if last else ''}")


class Link(Protocol):
    """Answers commands with events: an engine process, or a recording being played."""

    def send(self, command: Command) -> None:
        """Hand over one command; never blocks for long, never raises because the other side is gone."""

    def drain(self) -> list[Event]:
        """All events that arrived since the last call, oldest first; returns at once."""

    def close(self) -> None:
        """Leave; afterwards nothing arrives any more."""


def local_command() -> list[str]:
    """The engine on this machine, run by the interpreter that runs us."""
    return [sys.executable, "-m", "specchat", "engine"]


class Engine:
    """An engine process on the other end of two pipes. A `Link`.

    `wake` is called from the reader thread after an event arrived; it must be cheap and thread-safe.
    """

    def __init__(
        self, log: Path, command: Sequence[str] | None = None, threads: int = 0, wake: Callable[[], None] | None = None
    ) -> None:
        self.log = log
        self._wake = wake
        self._queue: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._write_lock = threading.Lock()
        self._closing = False
        log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
        apart = os.name != "nt"  # Ctrl+C in the terminal is ours to handle, not the engine's
        try:
            self._process = subprocess.Popen(
                list(command or local_command()),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=handle,
                env=engine_environment(threads),
                start_new_session=apart and command is not None,
                # in our own session niceness tells the engine from us; Linux weighs sessions against each other first
                process_group=0 if apart and command is None else None,
            )
        except OSError as error:
            words = " ".join(command or local_command())
            raise EngineError(f"the engine could not be started: {words}: {error.strerror or error}") from None
        finally:
            os.close(handle)
        threading.Thread(target=self._read, name="engine-events", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def send(self, command: Command) -> None:
        """Hand over one command. A dead engine is not an error here: its `Died` event reports it."""
        line = encode(command)  # what cannot be written down is not mistaken for an engine that is gone
        with self._write_lock:
            assert self._process.stdin is not None, "the engine was started with a pipe"
            with suppress(ValueError, OSError):
                self._process.stdin.write(line)
                self._process.stdin.flush()

    def drain(self) -> list[Event]:
        return take_all(self._queue)

    def events(self) -> Iterator[Event]:
        """Events as they arrive, the last one being `Died` (unless `close` was called first)."""
        while True:
            try:
                event = self._queue.get(timeout=_LOOK_UP_S)
            except queue.Empty:
                continue
            yield event
            if isinstance(event, Died):
                return

    def close(self, patience_s: float = 2.0) -> None:
        """Ask the engine to leave, and make it leave if it does not."""
        self._closing = True
        self.send(Quit())
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            try:
                self._process.wait(patience_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None, "the engine was started with a pipe"
        reader, greeted = EventReader(), False
        for line in lines_of(rate_limited(self._process.stdout)):
            why = "" if greeted else wrong_greeting(line)
            if not why:
                try:
                    event = reader.read(line)
                except msgspec.DecodeError as error:
                    said = short(line[:200].decode(errors="replace"))
                    why = f"the engine sent a line that is not an event ({error}): {said}"
            if why:
                self._put(Died(None, why))
                self._process.kill()
                return
            greeted = True
            self._put(event)
        returncode = self._process.wait()
        if not self._closing:
            try:
                words = read_end(self.log, 2000).decode("utf-8", "replace").strip()
            except OSError:
                words = ""
            self._put(Died(returncode, f"{words}\n{_SIGNALS.get(-returncode, '')}".strip()))

    def _put(self, event: Event) -> None:
        self._queue.put(event)
        if self._wake is not None:
            self._wake()


APART_S = 0.02
"""Seconds from one read to the next, at least. What comes after a longer silence comes at once."""

_AT_ONCE_BYTES = 1 << 17
"""More than a pipe holds."""


def rate_limited(
    stream: IO[bytes], clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], object] = time.sleep
) -> IO[bytes]:
    """The same bytes, from the pipe below the stream; what the stream holds itself is not seen."""
    return io.BufferedReader(_RateLimited(stream, clock, sleep), _AT_ONCE_BYTES)


class _RateLimited(io.RawIOBase):
    def __init__(self, stream: IO[bytes], clock: Callable[[], float], sleep: Callable[[float], object]) -> None:
        self._stream = stream  # kept open
        self._clock, self._sleep = clock, sleep
        self._not_before = 0.0

    def readable(self) -> bool:
        return True

    def readinto(self, room: memoryview) -> int:  # type: ignore[override]
        early_s = self._not_before - self._clock()
        if early_s > 0:
            self._sleep(early_s)
        data = os.read(self._stream.fileno(), len(room))
        self._not_before = self._clock() + APART_S
        room[: len(data)] = data
        return len(data)


class GuestLink:
    """A `Link` without a process of its own. Guest and owner may run in different threads."""

    def __init__(self, wake: Callable[[], None], wake_owner: Callable[[], None]) -> None:
        """`wake` is called after an answer arrived, `wake_owner` after a command was handed over."""
        self._wake, self._wake_owner = wake, wake_owner
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()

    def send(self, command: Command) -> None:
        self._commands.put(command)
        self._wake_owner()

    def drain(self) -> list[Event]:
        return take_all(self._events)

    def close(self) -> None:
        """Leave; the owner stops what is being done for this guest."""
        self.send(Quit())

    def commands(self) -> list[Command]:
        """For the owner: all commands since the last call, oldest first; returns at once."""
        return take_all(self._commands)

    def answer(self, event: Event) -> None:
        """For the owner: pass an event on."""
        self._events.put(event)
        self._wake()
