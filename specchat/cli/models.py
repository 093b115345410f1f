"""`specchat models`: see which weights are here, pull, check and remove them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from specchat.cli.fetch_progress import print_event, reporter
from specchat.cli.flags import model_names
from specchat.cli.model_list import print_json, print_table
from specchat.cli.sizes import sized

if TYPE_CHECKING:
    from specchat.config import ModelSpec

app = typer.Typer(help="See which weights are here; pull, check and remove them.", no_args_is_help=True)

Name = Annotated[
    str, typer.Argument(help="a pair or a model, as `specchat models list` shows them", autocompletion=model_names)
]
Output = Literal["table", "json"]
PullOutput = Literal["text", "jsonl"]


@app.command("list")
def list_models(output: Annotated[Output, typer.Option(help="table or json")] = "table") -> None:
    """Every model: whether it is here, how large it is, which pairs use it, its licence."""
    from specchat.config import load_catalog

    catalog = load_catalog()
    if output == "json":
        print_json(catalog)
    else:
        print_table(catalog)


@app.command()
def pull(
    name: Name, output: Annotated[PullOutput, typer.Option(help="text, or progress as JSON lines")] = "text"
) -> None:
    """Fetch and verify the weights of a pair or a model; an interrupted pull goes on where it stopped."""
    from specchat.models import fetch

    say = typer.echo if output == "text" else _silent
    for spec in _chosen(name):
        if spec.scripted:
            say(f"{spec.name}: has no weights, nothing to pull")
            continue
        with reporter() if output == "text" else nullcontext(print_event) as report:
            path = _interruptible(partial(fetch.fetch, spec, report))
        say(f"{spec.name}: ready at {path}")


@app.command()
def check(name: Name) -> None:
    """Read every byte of the weights again and compare with what they must hash to."""
    from specchat.errors import WeightsError
    from specchat.models import fetch

    wrong = []
    for spec in _chosen(name):
        try:
            with reporter() as report:
                files = _interruptible(partial(fetch.check, spec, report))
        except fetch.Cancelled:
            raise
        except WeightsError as error:
            wrong.append(str(error))
            continue
        for file in files:
            typer.echo(f"{spec.name}: {file.name} is as it should be, SHA-256 {file.sha256}")
        if not files:
            typer.echo(f"{spec.name}: nothing to check, no file of it has a known checksum")
    if wrong:
        raise WeightsError("; ".join(wrong))


@app.command()
def remove(name: Name, yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False) -> None:
    """Delete the fetched weights of a pair or a model; your own files, named by path, are left alone."""
    from specchat.errors import UsageError
    from specchat.models import fetch

    chosen = [(spec, fetch.state(spec).disk_bytes) for spec in _chosen(name)]
    if not yes:
        if not can_ask():
            raise UsageError(f"removing {name} needs a yes, and nobody is here to ask: add --yes")
        listed = ", ".join(f"{spec.name} ({sized(size)})" for spec, size in chosen)
        if not typer.confirm(f"Remove the weights of {listed}?"):
            typer.echo("nothing removed")
            return
    for spec, _ in chosen:
        typer.echo(f"{spec.name}: {sized(fetch.remove(spec))} freed")


def _chosen(name: str) -> tuple[ModelSpec, ...]:
    """The models a name stands for: a pair's two, or the model's own."""
    from specchat.config import load_catalog
    from specchat.errors import UsageError, nearest

    catalog = load_catalog()
    if name in catalog.pairs:
        return catalog.models_of(catalog.pairs[name])
    if name in catalog.models:
        return (catalog.models[name],)
    raise UsageError(f"no pair or model is called {name!r}{nearest(name, [*catalog.pairs, *catalog.models])}")


def _silent(_: str) -> None: ...


def can_ask() -> bool:
    return sys.stdin.isatty()


def _interruptible(work: Callable[[], Any]) -> Any:
    """The work's result; Ctrl+C becomes the error that says what happens next (exit code 130)."""
    from specchat.models.fetch import Cancelled

    try:
        return work()
    except KeyboardInterrupt:
        raise Cancelled("stopped; what is complete is kept, and the next pull goes on from there") from None
