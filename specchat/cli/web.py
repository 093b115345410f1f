"""`specchat web`: the app in a browser, for this machine alone unless the user insists."""

from __future__ import annotations

import errno
import ipaddress
import shlex
import socket
import sys
from typing import Annotated, Any

import typer

from specchat.cli.flags import as_flags, takes_settings
from specchat.config import load_catalog, user_settings
from specchat.errors import SpecchatError, UsageError
from specchat.settings import Settings

_TAKEN = (errno.EADDRINUSE, errno.EACCES)

_PORTS = 20
"""How many ports are tried, from the one asked for."""

_WHY = (
    "whoever reaches it can use this machine's models, read the chats and every file that you can read, and start "
    "downloads; --allow-remote says that this is wanted"
)


@takes_settings
def web(
    settings: dict[str, Any],
    host: Annotated[str, typer.Option(help="Address to serve on; others than this machine's own are refused.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to serve on, or the next one that is free.")] = 8000,
    allow_remote: Annotated[
        bool, typer.Option("--allow-remote", help="Let other machines in, with --host 0.0.0.0 for example.")
    ] = False,
    engine: Annotated[
        str, typer.Option("--engine", envvar="SPECCHAT_ENGINE", help="As in the chat.", show_default=False)
    ] = "",
) -> None:
    """Open the chat in a browser. Every page is a chat of its own, with an engine of its own.

    Nothing is loaded from the internet. The address that is printed holds a key; without it nobody gets in.
    """
    if not _is_here(host) and not allow_remote:
        raise UsageError(f"--host {host} would let other machines in: {_WHY}")
    try:
        from specchat.cli.web_site import Site
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("textual_serve", "aiohttp"):
            raise
        raise UsageError("the browser needs one more package: pip install 'specchat[web]'") from None
    chosen = {**user_settings(), **settings}
    load_catalog().pair(chosen.get("pair", Settings().pair))  # a wrong name is told here, not on a blank page
    words = [sys.executable, "-m", "specchat", *as_flags(settings), *(["--engine", engine] if engine else [])]
    with _listening(host, port) as door:
        taken = door.getsockname()[1]
        if taken != port:
            print(f"port {port} is taken; using {taken}", file=sys.stderr)
        site = Site(shlex.join(words), door, guarded=_is_here(host))
        site.serve(lambda: print(f"specchat is at {site.address}   (Ctrl+C ends it)", flush=True))


def _is_here(host: str) -> bool:
    """Only programs on this machine can reach this address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listening(host: str, port: int) -> socket.socket:
    """A socket on the port, or on the next one that is free."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise UsageError(f"--host {host} is no address of this machine: {error.strerror}") from None
    for number in range(port, min(port + _PORTS, 65536)):
        door = socket.socket(family, kind)
        if sys.platform != "win32":
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            door.bind((address[0], number))
            door.listen()
        except OSError as error:
            door.close()
            if error.errno not in _TAKEN:
                raise UsageError(f"--host {host} --port {number} cannot be served on: {error.strerror}") from None
        else:
            return door
    raise SpecchatError(f"no port from {port} to {port + _PORTS - 1} is free; --port names another")
