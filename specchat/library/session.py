"""An engine that one pair is loaded in, in a process of its own or on a thread here: commands, events, its end."""

from __future__ import annotations

import io
import os
import queue
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NoReturn

from specchat import errors
from specchat.engine.client.client import Engine, EngineFailure, raise_death
from specchat.engine.protocol.codec import encode
from specchat.engine.protocol.commands import Cancel, Command, Load, Quit
from specchat.engine.protocol.environment import engine_environment
from specchat.engine.protocol.events import Died, Event, Failed, Finished, Loading, Notice, Ready
from specchat.errors import EngineError, UsageError

Progress = Callable[[Loading | Notice], object]


class EngineHere:
    """An engine on a thread of this process; what it is sent is checked as an engine process checks it."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        os.environ.update(engine_environment(int(settings.get("threads", 0))))  # torch reads it once
        from specchat.engine.server.command_queue import CommandQueue
        from specchat.engine.server.host import receive
        from specchat.engine.server.worker import Worker

        self._receive, self._commands = receive, CommandQueue()
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        worker = Worker(self._commands, self._events.put)
        self._thread = threading.Thread(target=self._run, args=(worker.run,), name="engine", daemon=True)
        self._thread.start()

    def _run(self, run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as error:  # as the end of a process would be: whatever it was, no event comes any more
            self._events.put(Died(None, str(error) or type(error).__name__))

    def send(self, command: Command) -> None:
        self._receive(io.BytesIO(encode(command)), self._commands, self._events.put)

    def events(self) -> Iterator[Event]:
        while True:
            with suppress(queue.Empty):  # Ctrl+C is seen between two waits
                yield self._events.get(timeout=0.25)

    def close(self) -> None:
        self.send(Quit())
        self._thread.join(2.0)


RunningEngine = Engine | EngineHere


class Session:
    """The engine of a pair, until it is closed or dies."""

    def __init__(self, engine: RunningEngine, progress: Progress) -> None:
        self.engine = engine
        self.running: int | None = None  # the reply that is being written
        self._loads = 0  # that are not answered yet: one that was interrupted is answered later
        self._progress = progress
        self._end = weakref.finalize(self, _close, engine)

    def send(self, command: Command) -> None:
        self.engine.send(command)

    def next(self) -> Event:
        """The engine's next event; progress and notices are passed on besides.

        Raises:
            EngineError: the engine is gone.
        """
        if not self._end.alive:
            raise EngineError("this pair is closed, or its engine is gone; specchat.load starts another")
        event = next(self.engine.events())
        if isinstance(event, Died):
            self.close()
            raise_death(event)
        if isinstance(event, Finished | Failed) and event.id == self.running:
            self.running = None
        if _answers_load(event):
            self._loads -= 1
        if isinstance(event, Loading | Notice):
            self._progress(event)
        return event

    def load(self, settings: dict[str, Any]) -> Ready:
        """Use these settings; models that are loaded stay, and so does the text that they have read."""
        self._loads += 1
        self.send(Load(settings))
        try:
            while not (_answers_load(event := self.next()) and self._loads == 0):
                pass
        except KeyboardInterrupt:
            self.send(Cancel())
            raise
        if isinstance(event, Failed):
            raise_failure(event)
        assert isinstance(event, Ready), "a load is answered with Ready or Failed"
        return event

    def close(self) -> None:
        """End the engine; its log goes with it."""
        self._end()


def _answers_load(event: Event) -> bool:
    return isinstance(event, Ready) or (isinstance(event, Failed) and event.during == "load")


def raise_failure(failed: Failed) -> NoReturn:
    """Raise what the engine could not do: a usage error as the class it was there."""
    kind = getattr(errors, failed.kind, EngineFailure)
    if isinstance(kind, type) and issubclass(kind, UsageError):
        raise kind(failed.message)
    raise EngineFailure(failed)


def _close(engine: RunningEngine) -> None:
    engine.close()
    if isinstance(log := getattr(engine, "log", None), os.PathLike):
        with suppress(OSError):
            os.unlink(log)
