"""Runs the server on a listening socket until it is told to stop, and bounds its connections."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from specchat.engine.protocol.events import Event, Ready
from specchat.serve.access import Access
from specchat.serve.application import application
from specchat.serve.loaded_engine import LoadedEngine
from specchat.serve.requests import CheckedRequest
from specchat.serve.scheduler import Scheduler

ACCEPTED_AT_ONCE = 32
"""Connections that asyncio takes from the system before it looks at any of them."""

_OTHER_FILES = 4 * ACCEPTED_AT_ONCE
"""File numbers left to the rest of the program, and to connections that are closed in the next turns of its loop."""

_LEAST = 64


def most_connections() -> int:
    """Connections at once. Without a free file number the next one could not even be refused."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return 1024
    return max(resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _OTHER_FILES, _LEAST)


class BoundedConnection(H11Protocol):
    """A connection that gives way to new ones where there are too many: the one that was silent longest goes first."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to listen; where there are as many as may be, one that waits for nothing is closed."""
        super().connection_made(transport)
        self._silent_since_s = self.loop.time()
        ours = (one for one in self.connections if isinstance(one, BoundedConnection))
        there = [one for one in ours if not one.transport.is_closing()]  # one that closes is listed a while longer
        if len(there) > most_connections():
            silent = [one for one in there if not one._asked]  # this one at least
            min(silent, key=lambda one: one._silent_since_s).transport.abort()

    def on_response_complete(self) -> None:
        self._silent_since_s = self.loop.time()
        super().on_response_complete()

    @property
    def _asked(self) -> bool:
        """Whether a whole request has come that is not answered yet."""
        return self.cycle is not None and not self.cycle.response_complete


LARGEST_HEADERS_BYTES = 32 * 1024

_IDLE_S = 120
"""How long a connection stays open after its last reply. Clients close theirs sooner (httpx after 5 s, aiohttp 15 s, Go
90 s): if the server closed first, a request sent at that moment would be lost."""

_GOODBYE_S = 2
"""How long replies that are being sent may take when the server is told to stop."""


class _Server(uvicorn.Server):
    """Ends calmly on the first interruption, instead of raising it again when all is over.

    Args:
        on_stop: called once when it is told to stop.
        signals: whether interruptions are for it; they come to the main thread alone.
    """

    def __init__(self, config: uvicorn.Config, on_stop: Callable[[], None], *, signals: bool) -> None:
        super().__init__(config)
        self._on_stop, self._signals = on_stop, signals

    def stop(self) -> None:
        """Answer nothing more; called again, do not wait for running replies."""
        if not self.should_exit:
            self._on_stop()
        self.force_exit = self.should_exit
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM) if self._signals else ():
            try:
                loop.add_signal_handler(number, self.stop)
            except NotImplementedError:  # Windows
                signal.signal(number, lambda *_: loop.call_soon_threadsafe(self.stop))
        yield


async def serve_requests(
    engine: LoadedEngine,
    door: socket.socket,
    access: Access,
    longest: int,
    ready: Callable[[Ready], None],
    hear: Callable[[Event], None] | None = None,
    begins: Callable[[CheckedRequest], None] = lambda asked: None,
    stopped: asyncio.Event | None = None,
    parallel: int = 1,
) -> None:
    """Load the pair, then answer until interrupted, or until `stopped` is set; `ready` is called once it answers.

    Raises:
        SpecchatError: the pair cannot be loaded.
    """
    try:
        pair = await engine.load()
        scheduler = Scheduler(engine, longest, parallel, hear, begins)
        server = _Server(_config(application(scheduler, access)), scheduler.stop, signals=stopped is None)
        answering = asyncio.create_task(scheduler.run())
        answering.add_done_callback(lambda _: server.stop())  # a fault of ours: better no server than a silent one
        stopping = asyncio.create_task(_stop_after(stopped, server))
        ready(pair)
        try:
            await server.serve(sockets=[door])
        finally:
            for task in (answering, stopping):
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
    finally:
        engine.close()


async def _stop_after(stopped: asyncio.Event | None, server: _Server) -> None:
    if stopped is not None:
        await stopped.wait()
        server.stop()


def _config(app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=BoundedConnection,
        backlog=ACCEPTED_AT_ONCE,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="error",  # what uvicorn remarks on broken requests is advice for those who run it themselves
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=LARGEST_HEADERS_BYTES,
        timeout_keep_alive=_IDLE_S,
        timeout_graceful_shutdown=_GOODBYE_S,
    )
