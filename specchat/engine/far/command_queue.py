"""The commands that have arrived: the thread that reads puts them in, the thread that works takes them out."""

from __future__ import annotations

import queue
import threading

from specchat.engine.protocol.commands import Cancel, Command, Load, Quit


class CommandQueue:
    """Commands as they arrive: most wait their turn, cancellations act at once."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._cancelled: set[int | None] = set()
        self.quitting = threading.Event()

    def receive(self, command: Command) -> None:
        """Called from the reading thread."""
        match command:
            case Cancel():
                self._cancelled.add(command.id)
                self._waiting.put(
                    command
                )  # wakes a thread that waits for a command; the cancellation itself is already recorded
            case Load():
                self._cancelled.discard(None)  # what was cancelled is older than this
                self._waiting.put(command)
            case Quit():
                self.quitting.set()
                self._waiting.put(command)
            case _:
                self._waiting.put(command)

    def next(self, timeout_s: float | None = None) -> Command | None:
        """The next command, or None where none came in time."""
        try:
            return self._waiting.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def pending(self) -> list[Command]:
        """All commands that wait now, oldest first."""
        commands: list[Command] = []
        while (command := self._take()) is not None:
            commands.append(command)
        return commands

    @property
    def empty(self) -> bool:
        return self._waiting.empty()

    def cancelled(self, id: int | None) -> bool:
        """Whether reply `id` (None: loading) is to stop."""
        return id in self._cancelled or self.quitting.is_set()

    def forget_cancel(self, id: int | None) -> None:
        self._cancelled.discard(id)

    def _take(self) -> Command | None:
        try:
            return self._waiting.get_nowait()
        except queue.Empty:
            return None
