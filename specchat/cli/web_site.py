"""The web site that `specchat web` serves: one page, everything on it from this machine, no access without the key."""

from __future__ import annotations

import ipaddress
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler
from textual_serve.server import Server

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


class Site:
    """Serves the app on a listening socket.

    Args:
        command: the command line that starts the app.
        door: where to listen.
        guarded: only this machine's own names are answered to, so that no page elsewhere can pass for this one.
    """

    def __init__(self, command: str, door: socket.socket, *, guarded: bool) -> None:
        self.key = secrets.token_urlsafe(12)
        self._door = door
        self._guarded = guarded
        self._host, self._port = door.getsockname()[:2]
        self._cookie = f"specchat-key-{self._port}"  # cookies are shared by all ports of a host
        self._server = Server(command, host=self._host, port=self._port, title="specchat")

    @property
    def address(self) -> str:
        """What to open in a browser."""
        anywhere = ipaddress.ip_address(self._host).is_unspecified
        host = socket.gethostname() if anywhere else self._host
        return f"http://{f'[{host}]' if ':' in host else host}:{self._port}/?key={self.key}"

    def serve(self, ready: Callable[[], None]) -> None:
        """Serve until interrupted; `ready` is called once an interruption is a calm end."""

        async def on_startup(_: web.Application) -> None:
            ready()

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
        """The routes, behind the guard."""
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
            moved.set_cookie(self._cookie, self.key, httponly=True, samesite="Strict")
            raise moved
        return web.FileResponse(_PAGE / "index.html")

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let in who has the key, from a page of ours, under a name of ours."""
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
        if self._guarded and request.host not in self._names():
            return "this server answers only to the address it printed"
        origin = request.headers.get("Origin")
        if origin and urlsplit(origin).netloc != request.host:
            return "pages from elsewhere are not let in"
        given = request.query.get("key", "") or request.cookies.get(self._cookie, "")
        if not secrets.compare_digest(given.encode(), self.key.encode()):
            return "open the whole address that specchat printed, with its key"
        return ""

    def _names(self) -> set[str]:
        return {f"{name}:{self._port}" for name in (self._host, f"[{self._host}]", "localhost")}

    def _headers(self, request: web.Request) -> dict[str, str]:
        sockets = f"ws://{request.host}"
        return {name: value.replace("{sockets}", sockets) for name, value in _HEADERS.items()}
