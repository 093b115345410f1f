"""`specchat web`: the app in a browser, for this machine alone unless the user insists."""

from __future__ import annotations

import shlex
import sys
from typing import Annotated, Any

import typer

from specchat.cli.flags import as_flags, takes_settings
from specchat.cli.listening import is_here, listening, refuse_remote
from specchat.cli.start_engine import check_pair
from specchat.errors import UsageError

_WHY = (
    "whoever reaches it can use this machine's models, read the chats and every file that you can read, and start "
    "downloads"
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
    refuse_remote(host, allow_remote, _WHY)
    try:
        from specchat.cli.web_site import Site
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("textual_serve", "aiohttp"):
            raise
        raise UsageError("the browser needs one more package: pip install 'specchat[web]'") from None
    check_pair(settings)  # a wrong name is told here, not on a blank page
    words = [sys.executable, "-m", "specchat", *as_flags(settings), *(["--engine", engine] if engine else [])]
    with listening(host, port) as door:
        site = Site(shlex.join(words), door, guarded=is_here(host))
        site.serve(lambda: print(f"specchat is at {site.address}   (Ctrl+C ends it)", flush=True))
