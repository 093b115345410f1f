"""`specchat serve`: OpenAI's API over one engine; and `specchat web`: the app in a browser."""

from __future__ import annotations

import shlex
import sys
from typing import Annotated, Any

import typer

from specchat.cli.flags import as_flags, takes_settings
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
from specchat.errors import UsageError, installs
from specchat.settings import MOST_TOGETHER


@takes_settings
def serve(
    settings: dict[str, Any],
    host: Host = "127.0.0.1",
    port: Port = 8000,
    allow_remote: AllowRemote = False,
    queue: Annotated[
        int, typer.Option(metavar="<int>", min=0, max=10_000, help="Requests that may wait while others are answered.")
    ] = 64,
    parallel: Annotated[
        int,
        typer.Option(metavar="<int>", min=1, max=MOST_TOGETHER, help="Requests that are answered at a time."),
    ] = 4,
    watch: Annotated[bool, typer.Option("--watch", help="Draw the token trees of the replies.")] = False,
    engine: EngineOption = "",
) -> None:
    """Serve OpenAI's API: chat completions, completions, models.

    Several requests are answered at a time: one pass of the model reads the guesses for all of them. Others wait.
    Clients need the key that is printed; SPECCHAT_SERVE_KEY sets one of your own.
    """
    refuse_remote(host, allow_remote, "any client with the key can use this machine's models")
    key = own_key()
    if watch and not sys.stdout.isatty():
        raise UsageError("--watch draws on a terminal, and standard output is not one")
    check_packages()

    from specchat.cli.serving import serve_on
    from specchat.engine.client.start_engine import check_pair

    if not engine:
        check_pair(settings)
    with listening(host, port) as door:
        serve_on(settings, door, is_here(host), key, (queue, parallel), watch, engine)


_WHY = (
    "any client that reaches it can use this machine's models, read the chats and every file that you can read, "
    "and start downloads"
)


@takes_settings
def web(
    settings: dict[str, Any],
    host: Host = "127.0.0.1",
    port: Port = 8000,
    allow_remote: AllowRemote = False,
    engine: EngineOption = "",
) -> None:
    """Open the chat in a browser. Every page is a chat of its own, with an engine of its own.

    Nothing is loaded from the internet. The address that is printed holds a key; requests without it are refused.
    """
    refuse_remote(host, allow_remote, _WHY)
    try:
        from specchat.cli.web_site import Site
        from specchat.engine.client.start_engine import check_pair
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("textual_serve", "aiohttp"):
            raise
        raise UsageError(f"the browser needs one more package: {installs('web')}") from None
    check_pair(settings)  # a wrong name is reported here, not on a blank page
    words = [sys.executable, "-m", "specchat", *as_flags(settings), *(["--engine", engine] if engine else [])]
    with listening(host, port) as door:
        site = Site(shlex.join(words), door, guarded=is_here(host))
        site.serve(lambda: print(f"specchat is at {site.address}   (Ctrl+C ends it)", flush=True))
