"""The HTTP server of a running app: in a thread of its own, over a link to the app's engine."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from specchat.cli.listening import address_of, listening
from specchat.cli.serve import KEY_VARIABLE, check_packages, own_key
from specchat.engine.client.client import Link
from specchat.errors import SpecchatError

HOST = "127.0.0.1"
QUEUE = 64
"""Requests that may wait while another is answered."""

_GOODBYE_S = 3.0


def serve_from_app(
    port: int,
    connect: Callable[[Callable[[], None]], Link],
    asked: Callable[[str], None],
    ended: Callable[[str], None],
) -> AppServer:
    """Start the server on this port of this machine, or on the next one that is free; see `StartServer`."""
    check_packages()
    return AppServer(listening(HOST, port, say=lambda told: None), connect, asked, ended)


class AppServer:
    """A server that answers until it is stopped."""

    def __init__(
        self,
        door: socket.socket,
        connect: Callable[[Callable[[], None]], Link],
        asked: Callable[[str], None],
        ended: Callable[[str], None],
    ) -> None:
        from specchat.serve.access import Access, fresh_key

        chosen = own_key()
        self.address = address_of(door)
        self._access = Access(HOST, door.getsockname()[1], True, chosen or fresh_key())
        self.key = f"that {KEY_VARIABLE} says" if chosen else self._access.key
        self._door, self._connect, self._asked, self._ended = door, connect, asked, ended
        self._loop = asyncio.new_event_loop()
        self._stopped = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="server", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Answer nothing more; replies that are being sent get a moment."""
        with suppress(RuntimeError):  # it has ended already
            self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(_GOODBYE_S)

    def _run(self) -> None:
        from specchat.serve.loaded_engine import LoadedEngine
        from specchat.serve.server import serve_requests

        engine = LoadedEngine(self._connect, {})
        why = ""
        try:
            self._loop.run_until_complete(
                serve_requests(
                    engine,
                    self._door,
                    self._access,
                    QUEUE,
                    ready=lambda pair: None,
                    begins=lambda asked: self._asked(asked.client),
                    stopped=self._stopped,
                )
            )
        except SpecchatError as error:
            why = str(error)
        finally:
            self._door.close()
            self._loop.close()
        if not self._stopped.is_set():
            self._ended(why or "the server has ended")
