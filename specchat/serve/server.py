"""Runs the server on a listening socket until it is told to stop."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import uvicorn
from starlette.types import ASGIApp

from specchat.engine.protocol.events import Event, Ready
from specchat.serve.access import Access
from specchat.serve.application import application
from specchat.serve.loaded_engine import LoadedEngine
from specchat.serve.scheduler import Scheduler

LARGEST_HEADERS_BYTES = 32 * 1024

_GOODBYE_S = 2
"""How long replies that are being sent may take when the server is told to stop."""


class _Server(uvicorn.Server):
    """Ends calmly on the first interruption, instead of raising it again when all is over."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                loop.add_signal_handler(number, self.handle_exit, number, None)
            except NotImplementedError:  # Windows
                signal.signal(number, self.handle_exit)
        yield


async def serve(
    engine: LoadedEngine,
    door: socket.socket,
    access: Access,
    longest: int,
    ready: Callable[[Ready], None],
    hear: Callable[[Event], None] = lambda event: None,
) -> None:
    """Load the pair, then answer until interrupted; `ready` is called once requests are answered.

    Raises:
        SpecchatError: the pair cannot be loaded.
    """
    try:
        pair = await engine.load()
        scheduler = Scheduler(engine, longest, hear)
        answering = asyncio.create_task(scheduler.run())
        ready(pair)
        try:
            await _Server(_config(application(scheduler, access))).serve(sockets=[door])
        finally:
            answering.cancel()
            with suppress(asyncio.CancelledError):
                await answering
    finally:
        engine.close()


def _config(app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=LARGEST_HEADERS_BYTES,
        timeout_graceful_shutdown=_GOODBYE_S,
    )
