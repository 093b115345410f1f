"""`specchat serve`: OpenAI's API on this machine, over one engine."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from specchat.cli.flags import takes_settings
from specchat.cli.listening import (
    AllowRemote,
    EngineOption,
    Host,
    Port,
    check_packages,
    is_here,
    listening,
    own_key,
    refuse_remote,
)
from specchat.errors import UsageError


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
