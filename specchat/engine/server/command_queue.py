"""The commands that have arrived: the thread that reads puts them in, the thread that works takes them out."""

from __future__ import annotations

import queue
import threading

from specchat.engine.protocol.commands import Cancel, Command, Load, Quit

_MOST_CANCELLED = 10_000
"""Cancellations that are remembered: far more than there are replies at any time."""


class CommandQueue:
    """Commands as they arrive: most wait their turn, cancellations act at once."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._cancelled: dict[int | None, None] = {}  # the oldest first
        self._lock = threading.Lock()
        self.quitting = threading.Event()

    def receive(self, command: Command) -> None:
        """Called from the reading thread."""
        match command:
            case Cancel():
                self._cancel(command.id)
            case Load():
                self.forget_cancel(None)  # what was cancelled is older than this
            case Quit():
                self.quitting.set()
        self._waiting.put(command)  # a Cancel too: it wakes a thread that waits for a command

    def next(self, timeout_s: float | None = None) -> Command | None:
        """The next command, or None where none came in time."""
        try:
            return self._waiting.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def pending(self) -> list[Command]:
        """All commands that wait now, oldest first."""
        commands: list[Command] = []
        while (command := self.next(0.0)) is not None:
            commands.append(command)
        return commands

    @property
    def empty(self) -> bool:
        return self._waiting.empty()

    def cancelled(self, id: int | None) -> bool:
        """Whether reply `id` (None: loading) is to stop."""
        return id in self._cancelled or self.quitting.is_set()

    def forget_cancel(self, id: int | None) -> None:
        with self._lock:
            self._cancelled.pop(id, None)

    def _cancel(self, id: int | None) -> None:
        """Remember it until the reply has ended; of replies that nobody asked for it is forgotten some time."""
        with self._lock:
            self._cancelled[id] = None
            if len(self._cancelled) > _MOST_CANCELLED:
                del self._cancelled[next(iter(self._cancelled))]
