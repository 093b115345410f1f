"""Taking events off a queue that another thread fills."""

from __future__ import annotations

import queue

from specchat.engine.protocol.events import Event


def take_all(waiting: queue.SimpleQueue[Event]) -> list[Event]:
    """All events that wait now, oldest first; returns at once."""
    events: list[Event] = []
    while True:
        try:
            events.append(waiting.get_nowait())
        except queue.Empty:
            return events
