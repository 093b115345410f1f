"""`specchat models add` and `forget`: pairs of your own, looked at before they are written down."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from specchat.cli.models import can_ask

_WHAT = "a .gguf file, a folder of safetensors, a hub repository (owner/name, owner/name/file.gguf) or a known model"

OwnName = Annotated[str, typer.Argument(help="the name of your pair")]


def add(
    name: OwnName,
    target: Annotated[str, typer.Option("--target", help=_WHAT)],
    draft: Annotated[str | None, typer.Option("--draft", help="what drafts for it, likewise")] = None,
    summary: Annotated[str, typer.Option("--summary", help="a line about it", show_default=False)] = "",
) -> None:
    """Add a pair of your own to models.toml, if it can work; else say why not, in one line each."""
    from specchat.config import load_catalog
    from specchat.config.own_pairs import write_pair
    from specchat.models.inspect.add_pair import NewPair

    with TemporaryDirectory() as scratch:
        adoption = NewPair(load_catalog(), Path(scratch))
        pair = adoption.pair(name, target, draft, summary)
    for remark in adoption.remarks:
        typer.echo(f"note: {remark}", err=True)
    if pair is None:
        for problem in adoption.problems:
            typer.echo(f"specchat: {problem}", err=True)
        raise typer.Exit(2)
    file = write_pair(pair, tuple(adoption.fresh))
    typer.echo(f"added {name} ({' ← '.join(model.name for model in adoption.models)}) to {file}")


def forget(name: OwnName, yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False) -> None:
    """Take a pair of your own out of models.toml; its weights stay (`specchat models remove` deletes those)."""
    from specchat.config import users_models
    from specchat.config.own_pairs import forget_pair
    from specchat.errors import UsageError

    if not yes:
        if not can_ask():
            raise UsageError(f"forgetting {name} needs a yes, and nobody is here to ask: add --yes")
        if not typer.confirm(f"Forget {name}?"):
            typer.echo("nothing changed")
            return
    models = forget_pair(name)
    typer.echo(f"took {', '.join([name, *(model for model in models if model != name)])} out of {users_models()}")
