"""Keeps the number of connections below what the system allows, so that clients who say nothing lock nobody out."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

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
        self._began_s = self.loop.time()
        there = [one for one in self.connections if isinstance(one, BoundedConnection) and one._open]
        if len(there) > most_connections():
            silent = [one for one in there if not one._asked]  # this one at least
            min(silent, key=lambda one: one._began_s).transport.abort()

    @property
    def _open(self) -> bool:
        """Whether it is not being closed; that takes another turn of the loop."""
        return not self.transport.is_closing()

    @property
    def _asked(self) -> bool:
        """Whether a whole request has come that is not answered yet."""
        return self.cycle is not None and not self.cycle.response_complete
