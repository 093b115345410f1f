"""Where a server of ours listens, and the options that say so: here alone unless the user insists, on a free port."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import sys
from typing import Annotated, Any

import typer

from specchat.errors import SpecchatError, UsageError, installs

KEY_VARIABLE = "SPECCHAT_SERVE_KEY"
_SHORTEST_KEY = 8
_SERVER_PACKAGES = ("starlette", "uvicorn", "anyio", "h11")

_TAKEN = (errno.EADDRINUSE, errno.EACCES)

_OPEN_TO_ALL = 1024
"""The first port that needs no rights of its own."""

_PORTS = 20
"""How many ports are tried, from the one asked for."""

Host = Annotated[str, typer.Option(help="Address to serve on; others than this machine's own are refused.")]
Port = Annotated[
    int, typer.Option(metavar="<int>", min=1, max=65535, help="Port to serve on, or the next one that is free.")
]
AllowRemote = Annotated[
    bool, typer.Option("--allow-remote", help="Let other machines in, with --host 0.0.0.0 for example.")
]
EngineOption = Annotated[
    str, typer.Option("--engine", envvar="SPECCHAT_ENGINE", help="As in the chat.", show_default=False)
]


def refuse_remote(host: str, allow_remote: bool, why: str) -> None:
    """Refuse an address that other machines can reach, unless they are to be let in.

    Raises:
        UsageError: says what they could do, or that there is no such address.
    """
    if not is_here(host) and not allow_remote:
        _resolved(host, 0)
        raise UsageError(f"--host {host} would let other machines in: {why}; add --allow-remote to allow this")


def is_here(host: str) -> bool:
    """Only programs on this machine can reach this address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listening(host: str, port: int, *, silent: bool = False) -> socket.socket:
    """A socket on the port, or on the next one that is free, which is then said unless it is to be silent."""
    family, kind, _, _, address = _resolved(host, port)
    last = min(port + _PORTS - 1, 65535)
    for number in range(port, last + 1):
        door = socket.socket(family, kind)
        if sys.platform != "win32":
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            door.bind((address[0], number))
            door.listen(128)
        except OSError as error:
            door.close()
            if error.errno == errno.EACCES and number < _OPEN_TO_ALL:
                why = f"ports below {_OPEN_TO_ALL} need more rights"
                raise UsageError(f"--port {number} cannot be served on: {why}; --port names another") from None
            if error.errno not in _TAKEN:
                raise UsageError(f"--host {host} --port {number} cannot be served on: {error.strerror}") from None
        else:
            if number != port and not silent:
                print(f"port {port} is taken; using {number}", file=sys.stderr)
            return door
    taken = f"no port from {port} to {last} is free" if last > port else f"port {port} is taken"
    raise SpecchatError(f"{taken}; --port names another")


def _resolved(host: str, port: int) -> tuple[int, int, int, str, tuple[Any, ...]]:
    """Family, kind, protocol, name and address of a socket for this host."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or "it is no name of a machine"
        raise UsageError(f"--host {host} is not an address of this machine: {why}") from None


def address_of(door: socket.socket) -> str:
    """The address of this socket for others: `http://127.0.0.1:8000`."""
    host, port = door.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = socket.gethostname()
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def check_packages() -> None:
    """Refuse to serve where the framework is not installed; say how to install it."""
    try:
        import specchat.serve.server  # noqa: F401
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in _SERVER_PACKAGES:
            raise
        raise UsageError(f"the server needs two more packages: {installs('serve')}") from None


def own_key() -> str | None:
    """The key that the user chose, if any; not a flag, because other users can read those.

    Raises:
        UsageError: it is too short, or has spaces or characters that are not visible ASCII.
    """
    key = os.environ.get(KEY_VARIABLE)
    if key is not None and (len(key) < _SHORTEST_KEY or not key.isascii() or not key.isprintable() or " " in key):
        raise UsageError(f"{KEY_VARIABLE} must have {_SHORTEST_KEY} or more visible ASCII characters and no spaces")
    return key
