"""A second client of an engine: commands go to the client that owns the engine, which passes events on."""

from __future__ import annotations

import queue
from collections.abc import Callable

from specchat.engine.client.waiting_events import take_all
from specchat.engine.protocol.commands import Command, Quit
from specchat.engine.protocol.events import Event


class GuestLink:
    """A `Link` without a process of its own. Guest and owner may run in different threads.

    Args:
        wake: called after an answer arrived.
        wake_owner: called after a command was handed over.
    """

    def __init__(self, wake: Callable[[], None], wake_owner: Callable[[], None]) -> None:
        self._wake, self._wake_owner = wake, wake_owner
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()

    def send(self, command: Command) -> None:
        """Hand a command to the owner."""
        self._commands.put(command)
        self._wake_owner()

    def drain(self) -> list[Event]:
        """All answers since the last call, oldest first; returns at once."""
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
