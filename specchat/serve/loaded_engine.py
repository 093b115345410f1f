"""An engine with its pair loaded, for asyncio: starts it, awaits its events, starts it again when it is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from specchat.engine.client.client import EngineFailure, Link
from specchat.engine.protocol.commands import Command, Load
from specchat.engine.protocol.events import Died, Event, Failed, Loading, Notice, Ready
from specchat.errors import EngineError

Start = Callable[[Callable[[], None]], Link]
"""Starts an engine; what it is given is called from another thread after an event arrived."""


class LoadedEngine:
    """One engine at a time. `ready` says what is loaded, or was loaded last; None before that.

    Args:
        hear: told of progress while loading, and of what the engine wants the user to know, whenever it comes.
    """

    def __init__(
        self, start: Start, settings: Mapping[str, Any], hear: Callable[[Loading | Notice], None] = lambda event: None
    ) -> None:
        self.ready: Ready | None = None
        self._start = start
        self._settings = dict(settings)
        self._hear = hear
        self._link: Link | None = None
        self._arrived: asyncio.Queue[Event] = asyncio.Queue()
        self._died = self._loaded = False
        self.on_event: Callable[[], None] = lambda: None

    @property
    def alive(self) -> bool:
        """Whether an engine runs that has not said that it is gone."""
        return self._link is not None and not self._died

    async def load(self) -> Ready:
        """Start an engine in place of the last one, and load the pair.

        Raises:
            SpecchatError: the engine cannot be started, dies, or cannot load the pair.
        """
        self.close()
        loop, arrived = asyncio.get_running_loop(), asyncio.Queue[Event]()
        links: list[Link] = []

        def collect() -> None:
            for event in links[0].drain() if links else ():
                if isinstance(event, Ready) and self._loaded and links[0] is self._link:
                    self.ready = event  # of an engine that others use too: they chose other settings, or another pair
                elif isinstance(event, Notice):
                    self._hear(event)
                else:
                    arrived.put_nowait(event)
                if isinstance(event, Died) and links[0] is self._link:
                    self._died = True
            self.on_event()

        def wake() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(collect)

        self._died = self._loaded = False
        links.append(self._start(wake))
        self._link, self._arrived = links[0], arrived
        collect()
        self.send(Load(self._settings))
        while True:
            match await arrived.get():
                case Ready() as ready:
                    self.ready, self._loaded = ready, True
                    return ready
                case Loading() as progress:
                    self._hear(progress)
                case Failed() as failed:
                    self.close()
                    raise EngineFailure(failed)
                case Died() as died:
                    self.close()
                    raise EngineError(f"the engine died while it loaded the pair{last_words(died)}")

    def send(self, command: Command) -> None:
        if self._link is not None:
            self._link.send(command)

    def take_event(self) -> Event | None:
        """The next event that has arrived; None where there is none. `on_event` is called when there may be more."""
        return None if self._arrived.empty() else self._arrived.get_nowait()

    def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()


def last_words(died: Died) -> str:
    """`: MemoryError`, if the engine left an error message."""
    words = died.last_words.strip().split("\n")[-1]
    return f": {words}" if words else ""
