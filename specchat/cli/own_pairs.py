"""`specchat models add` and `forget`: pairs of your own, looked at before they are written down."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from specchat.cli.confirm import confirmed
from specchat.cli.fetch_progress import reporter

_WHAT = "a .gguf file, a folder of safetensors, a hub repository (owner/name, owner/name/file.gguf) or a known model"

_CHECKPOINT = "an EAGLE-3 checkpoint, a folder or a hub repository (owner/name), in the authors' layout or vLLM's"

OwnName = Annotated[str, typer.Argument(help="the name of your pair, or of your trained drafter")]


def add(
    name: OwnName,
    target: Annotated[str, typer.Option("--target", help=_WHAT)],
    drafts: Annotated[
        list[str] | None, typer.Option("--draft", help="what drafts for it, likewise; again for another draft model")
    ] = None,
    summary: Annotated[str, typer.Option("--summary", help="a line about it", show_default=False)] = "",
    drafter: Annotated[str | None, typer.Option("--drafter", help=_CHECKPOINT)] = None,
) -> None:
    """Add a pair of your own to models.toml, if it can work; else say why not, in one line each.

    With --drafter: add a published EAGLE-3 checkpoint as a trained drafter of this name for the target.
    """
    if drafter is not None:
        _add_drafter(name, target, drafter, bool(drafts))
        return
    from specchat.config import load_catalog
    from specchat.config.settings_saving import write_pair
    from specchat.models.hub.add_pair import NewPair

    with TemporaryDirectory() as scratch:
        adoption = NewPair(load_catalog(), Path(scratch))
        pair = adoption.pair(name, target, drafts or (), summary)
    for remark in adoption.remarks:
        typer.echo(f"note: {remark}", err=True)
    if pair is None:
        for problem in adoption.problems:
            typer.echo(f"specchat: {problem}", err=True)
        raise typer.Exit(2)
    file = write_pair(pair, tuple(adoption.fresh))
    typer.echo(f"added {name} ({' ← '.join(filter(None, [pair.target, ' + '.join(pair.drafts)]))}) to {file}")


def _add_drafter(name: str, target: str, source: str, with_draft: bool) -> None:
    from specchat.config import load_catalog
    from specchat.errors import UsageError
    from specchat.models.published_drafter import add_published

    if with_draft:
        raise UsageError("--drafter adds a trained drafter and --draft a pair; add one after the other")
    catalog = load_catalog()
    model = catalog.model(catalog.pairs[target].target if target in catalog.pairs else target)
    with reporter() as report:
        added = add_published(name, model, source, report)
    typer.echo(
        f"added {name}, an {added.method} drafter for {model.name}, in {added.folder}; /set drafter {added.method}"
    )


def forget(name: OwnName, yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False) -> None:
    """Take a pair of your own out of models.toml; its weights stay (`specchat models remove` deletes those)."""
    from specchat.config import load_catalog, users_models
    from specchat.config.settings_saving import forget_pair, own_pair

    own_pair(load_catalog(), name)
    if not confirmed(yes, f"forgetting {name}", f"Forget {name}?", "nothing changed"):
        return
    models = forget_pair(name)
    typer.echo(f"took {', '.join([name, *(model for model in models if model != name)])} out of {users_models()}")
