"""An engine process under test: commands sent, events awaited with a limit."""

from __future__ import annotations

import threading
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from specchat.engine.client.client import Engine
from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Command, Generate, Load, Message

PATIENCE_S = 120
SCRIPTED = {"pair": "scripted", "max_tokens": 60}
HELLO = [Message("user", "What are you?")]


class Driver:
    """An engine, and events awaited with a limit."""

    def __init__(self, log: Path, command: list[str] | None = None) -> None:
        self._arrived = threading.Event()
        self._events: deque[ev.Event] = deque()
        self.engine = Engine(log, command, threads=1, wake=self._arrived.set)

    def send(self, *commands: Command) -> Driver:
        for command in commands:
            self.engine.send(command)
        return self

    def until(self, *kinds: type) -> Any:
        """The next event of one of these kinds; the events before it are in `passed`."""
        self.passed: list[ev.Event] = []
        while True:
            event = self._next()
            if isinstance(event, kinds):
                return event
            if isinstance(event, ev.Died | ev.Failed):
                pytest.fail(f"unexpected {event}")
            self.passed.append(event)

    def _next(self) -> ev.Event:
        while not self._events:
            if not self._arrived.wait(PATIENCE_S):
                pytest.fail(f"the engine said nothing for {PATIENCE_S} s")
            self._arrived.clear()
            self._events.extend(self.engine.drain())
        return self._events.popleft()

    def load(self, **settings: Any) -> ev.Ready:
        return self.send(Load(SCRIPTED | settings)).until(ev.Ready)

    def rounds(self) -> list[ev.RoundDone]:
        return [event for event in self.passed if isinstance(event, ev.RoundDone)]

    def reply(self, id: int, seed: int | None = 7, messages: list[Message] | None = None) -> tuple[list[int], Any]:
        """A whole reply: its tokens and how it finished."""
        finished = self.send(Generate(id, messages or HELLO, seed)).until(ev.Finished)
        assert finished.id == id
        return [piece.token for event in self.rounds() for piece in event.pieces], finished
