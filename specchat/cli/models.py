"""`specchat models`: see which weights are here, pull, check and remove them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from specchat.cli.flags import model_names
from specchat.cli.model_list import print_json, print_table
from specchat.cli.progress import fetch_reporter, print_event, sized
from specchat.cli.streams import confirmed
from specchat.decoding.families import methods_with_weights
from specchat.errors import SpecchatError, UsageError, WeightsError, nearest

if TYPE_CHECKING:
    from specchat.config import Catalog, DrafterSpec, WeightsSpec
    from specchat.config.trained_drafters import TrainedDrafter
    from specchat.models.hub.trained_drafters import FoundDrafter

_Spec = TypeVar("_Spec", bound="WeightsSpec")

app = typer.Typer(help="See which weights are here; pull, check and remove them.", no_args_is_help=True)

Name = Annotated[
    str,
    typer.Argument(
        help="a pair, a model or a trained drafter, as `specchat models list` shows them", autocompletion=model_names
    ),
]
ListOutput = Literal["table", "json"]
PullOutput = Literal["text", "jsonl"]


@app.command("list")
def list_models(output: Annotated[ListOutput, typer.Option(help="table or json")] = "table") -> None:
    """Every model and trained drafter: whether it is here, how large it is, what it is for, its licence."""
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
    """Fetch and verify a pair, a model or a trained drafter; an interrupted pull goes on where it stopped.

    Of a pair's draft models those come that its settings use, and with it the trained drafters that models.toml lists
    for its target.
    """
    from specchat.models.hub.disk import Cancelled

    say = typer.echo if output == "text" else _silent
    if (local := _local_drafter(name)) is not None:
        _refuse_broken(local)
        say(f"{name}: ready at {local.folder}, {local.origin}")
        return
    chosen, left = _split(name)
    for spec in chosen:
        say(_pulled(spec, output))
    for drafter in _listed_drafters(name):
        try:
            say(_pulled(drafter, output))
        except Cancelled:
            raise
        except SpecchatError as error:
            typer.echo(f"note: {drafter.name} was not pulled, and {name} works without it: {error}", err=True)
    for spec in left:
        say(_unused(spec, name))


@app.command()
def check(name: Name) -> None:
    """Read every byte of the weights again and compare with what they must hash to."""
    from specchat.models.hub import fetching
    from specchat.models.hub.disk import Cancelled

    if (local := _local_drafter(name)) is not None:
        from specchat.models.hub.trained_drafters import damage

        drafter = _refuse_broken(local)
        if problem := damage(drafter):
            raise WeightsError(f"{local.name}: {problem}")
        typer.echo(f"{local.name}: {drafter.weights.name} is intact, SHA-256 {drafter.sha256}")
        return
    wrong = []
    chosen, left = _split(name)
    for spec in (*chosen, *_here(left), *_drafters_here(name)):
        try:
            with fetch_reporter() as report:
                files = _interruptible(partial(fetching.check, spec, report))
        except Cancelled:
            raise
        except WeightsError as error:
            wrong.append(str(error))
            continue
        for file in files:
            typer.echo(f"{spec.name}: {file.name} is intact, SHA-256 {file.sha256}")
        if not files:
            typer.echo(f"{spec.name}: nothing to check, no file of it has a known checksum")
    if wrong:
        raise WeightsError("; ".join(wrong))


@app.command()
def remove(name: Name, yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False) -> None:
    """Delete the fetched weights of a pair, a model or a trained drafter; files of yours, named by path, stay.

    A drafter that was trained here is deleted too, if its name is given.
    """
    from specchat.models.hub import fetching, model_state

    if (local := _local_drafter(name)) is not None:
        _remove_local(local, yes)
        return
    models, left = _split(name)
    chosen = [(spec, model_state.state(spec).disk_bytes) for spec in (*models, *_here(left), *_drafters_here(name))]
    listed = ", ".join(f"{spec.name} ({sized(size)})" for spec, size in chosen)
    if not _agreed(yes, name, f"Remove the weights of {listed}?"):
        return
    for spec, _ in chosen:
        typer.echo(f"{spec.name}: {sized(fetching.remove(spec))} freed")


@app.command("erase-state")
def erase_state(
    name: Annotated[str, typer.Argument(help="the trained drafter or the method that has learnt")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False,
) -> None:
    """Forget what a drafter has learnt from your chats, for every target; its weights stay."""
    from specchat.config import drafter_states

    size = drafter_states.kept_states().get(name, 0)
    if not size or _agreed(yes, name, f"Forget what {name} has learnt ({sized(size)})?"):
        typer.echo(f"{name}: {sized(drafter_states.erase_state(name))} of what it had learnt is gone")


def _pulled(spec: WeightsSpec, output: PullOutput) -> str:
    """Fetch and verify; what to say of it."""
    from specchat.models.hub import fetching

    _refuse_unknown_method(spec)
    if spec.scripted:
        return f"{spec.name}: has no weights, nothing to pull"
    with fetch_reporter() if output == "text" else nullcontext(print_event) as report:
        path = _interruptible(partial(fetching.fetch, spec, report))
    return f"{spec.name}: ready at {path}"


def _listed_drafters(name: str) -> tuple[DrafterSpec, ...]:
    """The trained drafters that models.toml lists for a pair's target; none where no pair has this name."""
    from specchat.config import load_catalog

    catalog = load_catalog()
    if name not in catalog.pairs:
        return ()
    return tuple(spec for spec in catalog.drafters_for(catalog.pairs[name].target) if _local_drafter(spec.name) is None)


def _drafters_here(name: str) -> list[DrafterSpec]:
    return _here(_listed_drafters(name))


def _here(specs: Iterable[_Spec]) -> list[_Spec]:
    """Those of which something is on this machine."""
    from specchat.models.hub import model_state

    return [spec for spec in specs if model_state.state(spec).disk_bytes]


def _unused(spec: WeightsSpec, pair: str) -> str:
    """A remark on a draft model that was not pulled with its pair."""
    from specchat.models.hub import model_state

    state = model_state.state(spec)
    if spec.scripted:
        return f"{spec.name}: has no weights, nothing to pull"
    if state.kind in ("ready", "unverified"):
        return f"{spec.name}: ready, though the settings of {pair} do not use it"
    size = f" ({sized(state.total_bytes)})" if state.total_bytes else ""
    return f"{spec.name}{size}: not pulled, as the settings of {pair} do not use it; its own name pulls it"


def _split(name: str) -> tuple[tuple[WeightsSpec, ...], tuple[WeightsSpec, ...]]:
    """The specs that a name stands for: a pair's models, a model, or a trained drafter; and draft models left out."""
    from specchat.cli.pair_states import models_in_use, unused_drafts
    from specchat.config import load_catalog

    catalog = load_catalog()
    if name in catalog.pairs:
        pair = catalog.pairs[name]
        return models_in_use(catalog, pair), tuple(catalog.model(draft) for draft in unused_drafts(pair))
    if name in catalog.models:
        return (catalog.models[name],), ()
    if name in catalog.drafters:
        return (catalog.drafters[name],), ()
    known = [*catalog.pairs, *catalog.models, *_all_drafters(catalog)]
    raise UsageError(f"no pair, model or trained drafter is called {name!r}{nearest(name, known)}")


def _all_drafters(catalog: Catalog) -> dict[str, FoundDrafter | None]:
    """Every trained drafter by name, with its folder if it is here."""
    from specchat.models.hub.trained_drafters import found_drafters

    return dict.fromkeys(catalog.drafters) | found_drafters(catalog, methods_with_weights())


def _refuse_unknown_method(spec: WeightsSpec) -> None:
    from specchat.config import DrafterSpec

    methods = methods_with_weights()
    if isinstance(spec, DrafterSpec) and spec.method not in methods:
        hint = nearest(spec.method, methods)
        raise UsageError(f"trained drafter {spec.name}: method {spec.method!r} is not a drafter with weights{hint}")


def _local_drafter(name: str) -> FoundDrafter | None:
    """The trained drafter of this name that was made here or came with specchat."""
    from specchat.config import load_catalog

    catalog = load_catalog()
    if name in catalog.pairs or name in catalog.models:
        return None
    found = _all_drafters(catalog).get(name)
    return found if found is not None and found.origin != "fetched" else None


def _refuse_broken(found: FoundDrafter) -> TrainedDrafter:
    if found.drafter is None or found.problem:
        raise UsageError(f"{found.name}: {found.problem}")
    return found.drafter


def _remove_local(found: FoundDrafter, yes: bool) -> None:
    from specchat.models.hub.model_state import bytes_below

    if found.origin == "shipped":
        raise UsageError(f"{found.name} came with specchat and stays with it")
    size = bytes_below(found.folder)
    if _agreed(yes, found.name, f"Remove {found.name} ({sized(size)})? It was made here and cannot be fetched again."):
        shutil.rmtree(found.folder)
        typer.echo(f"{found.name}: {sized(size)} freed")


def _agreed(yes: bool, name: str, question: str) -> bool:
    return confirmed(yes, f"removing {name}", question, "nothing removed")


def _silent(_: str) -> None: ...


def _interruptible(work: Callable[[], Any]) -> Any:
    """The work's result; Ctrl+C becomes the error that says what happens next (exit code 130)."""
    from specchat.models.hub.disk import Cancelled

    try:
        return work()
    except KeyboardInterrupt:
        raise Cancelled("stopped; what is complete is kept, and the next pull goes on from there") from None
