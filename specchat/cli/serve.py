"""`specchat serve`: OpenAI's API on this machine, over one engine."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from specchat.cli.flags import takes_settings
from specchat.cli.listening import AllowRemote, EngineOption, Host, Port, is_here, listening, refuse_remote
from specchat.errors import UsageError, installs

KEY_VARIABLE = "SPECCHAT_SERVE_KEY"
_SHORTEST_KEY = 8
_EXTRA = ("starlette", "uvicorn", "anyio", "h11")


@takes_settings
def serve(
    settings: dict[str, Any],
    host: Host = "127.0.0.1",
    port: Port = 8000,
    allow_remote: AllowRemote = False,
    queue: Annotated[
        int, typer.Option(metavar="<int>", min=0, max=10_000, help="Requests that may wait while another is answered.")
    ] = 64,
    watch: Annotated[bool, typer.Option("--watch", help="Draw the token trees of the replies.")] = False,
    engine: EngineOption = "",
) -> None:
    """Serve OpenAI's API: chat completions, completions, models.

    One request is answered at a time, others wait. Clients need the key that is printed; SPECCHAT_SERVE_KEY sets one
    of your own.
    """
    refuse_remote(host, allow_remote, "any client with the key can use this machine's models")
    key = own_key()
    if watch and not sys.stdout.isatty():
        raise UsageError("--watch draws on a terminal, and standard output is not one")
    check_packages()

    from specchat.cli.serving import serve_on
    from specchat.cli.start_engine import check_pair

    if not engine:
        check_pair(settings)
    with listening(host, port) as door:
        serve_on(settings, door, is_here(host), key, queue, watch, engine)


def check_packages() -> None:
    """Refuse to serve where the framework is not installed.

    Raises:
        UsageError: says how to install it.
    """
    try:
        import specchat.serve.server  # noqa: F401
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in _EXTRA:
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
