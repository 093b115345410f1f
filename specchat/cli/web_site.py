"""The web site that `specchat web` serves: one page, everything on it from this machine, no access without the key."""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler
from textual_serve.server import Server

from specchat.cli.listening import address_of
from specchat.engine.protocol.text import one_line
from specchat.errors import cut
from specchat.serve.access import Access

_PAGE = Path(__file__).with_name("page")
_PATIENCE_S = 3.0
"""How long open pages may take to say goodbye."""

_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self' {sockets}; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


class OneLine(logging.Handler):
    """Prints what the libraries log as one line each: a client can cause it, and then a traceback helps nobody."""

    @classmethod
    def take_over(cls) -> None:
        """Print what aiohttp and textual-serve log, in place of their own handlers."""
        for name in ("aiohttp", "textual-serve"):
            logger = logging.getLogger(name)
            logger.handlers, logger.propagate = [cls()], False

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        said = record.getMessage() if error is None else f"a request ended with {type(error).__name__}: {error}"
        print(f"specchat: {cut(one_line(said))}", file=sys.stderr)


class Site:
    """Serves the app on a listening socket.

    Args:
        guarded: only this machine's own names are answered to, so that no page elsewhere can pass for this one.
    """

    def __init__(self, command: str, door: socket.socket, *, guarded: bool) -> None:
        self._door = door
        self._host, self._port = door.getsockname()[:2]
        self._access = Access(self._host, self._port, guarded)
        self._cookie = f"specchat-key-{self._port}"  # cookies are shared by all ports of a host
        self._server = Server(command, host=self._host, port=self._port, title="specchat")

    @property
    def address(self) -> str:
        return f"{address_of(self._door)}/?key={self._access.key}"

    def serve(self, ready: Callable[[], None]) -> None:
        """Serve until interrupted; `ready` is called once an interruption is a calm end."""

        async def on_startup(_: web.Application) -> None:
            ready()

        OneLine.take_over()
        application = self.application()
        application.on_startup.append(on_startup)
        web.run_app(
            application,
            sock=self._door,
            print=None,
            access_log=None,
            shutdown_timeout=_PATIENCE_S,
        )

    def application(self) -> web.Application:
        application = web.Application(middlewares=[self._guard])
        application.add_routes(
            [
                web.get("/", self._index),
                web.get("/ws", self._server.handle_websocket),
                web.get("/download/{key}", self._server.handle_download),
                web.static("/static", self._server.statics_path),
                web.static("/page", _PAGE),
            ]
        )
        return application

    async def _index(self, request: web.Request) -> web.StreamResponse:
        """The page; the key moves from the address into a cookie, so that it stays in no history."""
        if "key" in request.query:
            moved = web.HTTPSeeOther("/")
            moved.set_cookie(self._cookie, self._access.key, httponly=True, samesite="Strict")
            raise moved
        return web.FileResponse(_PAGE / "index.html")

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let in requests with the key, from a page of ours, under a name of ours."""
        if why := self._refusal(request):
            return web.Response(status=403, text=why + "\n", headers=self._headers(request))
        try:
            response = await handler(request)
        except web.HTTPException as error:
            error.headers.update(self._headers(request))
            raise
        if not response.prepared:
            response.headers.update(self._headers(request))
        return response

    def _refusal(self, request: web.Request) -> str:
        if why := self._access.refuses_page(request.host, request.headers.get("Origin")):
            return why
        given = request.query.get("key", "") or request.cookies.get(self._cookie, "")
        return "" if self._access.knows(given) else "open the whole address that specchat printed, with its key"

    def _headers(self, request: web.Request) -> dict[str, str]:
        sockets = f"ws://{request.host}"
        return {name: value.replace("{sockets}", sockets) for name, value in _HEADERS.items()}
