"""Taking everything off a queue that another thread fills."""

from __future__ import annotations

import queue
from typing import TypeVar

_Item = TypeVar("_Item")


def take_all(waiting: queue.SimpleQueue[_Item]) -> list[_Item]:
    """All items that wait now, oldest first; returns at once."""
    items: list[_Item] = []
    while True:
        try:
            items.append(waiting.get_nowait())
        except queue.Empty:
            return items
