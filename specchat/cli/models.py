"""`specchat models`: see which weights are here, pull, check and remove them."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from specchat.cli.flags import model_names
from specchat.cli.progress import fetch_reporter, print_event, sized
from specchat.cli.streams import confirmed, plain_table, table_width
from specchat.decoding.families import methods_with_weights
from specchat.engine.protocol.text import one_line, visible
from specchat.errors import SpecchatError, UsageError, WeightsError, nearest

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from specchat.config import Catalog, DrafterSpec, WeightsSpec
    from specchat.config.trained_drafters import TrainedDrafter
    from specchat.models.hub.trained_drafters import ListedDrafter

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

    say: Callable[[str], object] = typer.echo if output == "text" else lambda _: None
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
    for spec in _chosen_and_here(name):
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
    chosen = [(spec, model_state.state(spec).disk_bytes) for spec in _chosen_and_here(name)]
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


def _chosen_and_here(name: str) -> list[WeightsSpec]:
    """What a name stands for, and what is on this machine of a pair's other draft models and trained drafters."""
    from specchat.models.hub import model_state

    chosen, left = _split(name)
    return [*chosen, *(spec for spec in (*left, *_listed_drafters(name)) if model_state.state(spec).disk_bytes)]


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


def _all_drafters(catalog: Catalog) -> dict[str, ListedDrafter | None]:
    """Every trained drafter by name, with its folder if it is here."""
    from specchat.models.hub.trained_drafters import found_drafters

    return dict.fromkeys(catalog.drafters) | found_drafters(catalog, methods_with_weights())


def _refuse_unknown_method(spec: WeightsSpec) -> None:
    from specchat.config import DrafterSpec

    methods = methods_with_weights()
    if isinstance(spec, DrafterSpec) and spec.method not in methods:
        hint = nearest(spec.method, methods)
        raise UsageError(f"trained drafter {spec.name}: method {spec.method!r} is not a drafter with weights{hint}")


def _local_drafter(name: str) -> ListedDrafter | None:
    """The trained drafter of this name that was made here or came with specchat."""
    from specchat.config import load_catalog

    catalog = load_catalog()
    if name in catalog.pairs or name in catalog.models:
        return None
    found = _all_drafters(catalog).get(name)
    return found if found is not None and found.origin != "fetched" else None


def _refuse_broken(found: ListedDrafter) -> TrainedDrafter:
    if found.drafter is None or found.problem:
        raise UsageError(f"{found.name}: {found.problem}")
    return found.drafter


def _remove_local(found: ListedDrafter, yes: bool) -> None:
    if found.origin == "shipped":
        raise UsageError(f"{found.name} came with specchat and stays with it")
    assert found.folder is not None, "it is here"
    size = sized(found.disk_bytes)
    if _agreed(yes, found.name, f"Remove {found.name} ({size})? It was made here and cannot be fetched again."):
        shutil.rmtree(found.folder)
        typer.echo(f"{found.name}: {size} freed")


def _agreed(yes: bool, name: str, question: str) -> bool:
    return confirmed(yes, f"removing {name}", question, "nothing removed")


def _interruptible(work: Callable[[], Any]) -> Any:
    """The work's result; Ctrl+C becomes the error that says what happens next (exit code 130)."""
    from specchat.models.hub.disk import Cancelled

    try:
        return work()
    except KeyboardInterrupt:
        raise Cancelled("stopped; what is complete is kept, and the next pull goes on from there") from None


def print_json(catalog: Catalog) -> None:
    from specchat.cli.pair_states import models_in_use
    from specchat.config.drafter_states import kept_states
    from specchat.models.hub import model_state
    from specchat.models.hub.pair_check import broken
    from specchat.models.hub.trained_drafters import listed_drafters

    models = []
    for spec in catalog.models.values():
        state, problem = model_state.state(spec), broken(spec)
        about = {
            "name": spec.name,
            "state": "broken" if problem else state.kind,
            "problem": problem,
            "disk_bytes": state.disk_bytes,
            "total_bytes": state.total_bytes,
        }
        about |= {"pairs": [pair.name for pair in catalog.pairs_using(spec.name)], "licence": spec.licence}
        about |= {"context_tokens": spec.context_tokens, "parameters": spec.parameters, "notes": spec.notes}
        models.append(about)
    drafters = [_about_drafter(one) for one in listed_drafters(catalog, methods_with_weights())]
    pairs = [
        {
            "name": pair.name,
            "target": pair.target,
            "draft": pair.draft,
            "drafts": list(pair.drafts),
            "used": [model.name for model in models_in_use(catalog, pair)],
            "summary": pair.summary,
            "notes": pair.notes,
        }
        for pair in catalog.pairs.values()
    ]
    listed = {"models": models, "pairs": pairs, "drafters": drafters, "learnt_bytes": kept_states()}
    typer.echo(json.dumps(listed, indent=2, ensure_ascii=False))


def _about_drafter(drafter: ListedDrafter) -> dict[str, Any]:
    about = dataclasses.asdict(drafter) | {"state": "broken" if drafter.problem else drafter.state}
    made = about.pop("drafter")
    del about["folder"]
    if made is not None:
        about |= {"made": made["made"].isoformat(), "target_sha256": made["target_sha256"]}
        about |= {key: made[key] for key in ("options", "data", "figures")}
    return about


def print_table(catalog: Catalog) -> None:
    from rich.console import Console
    from rich.text import Text

    from specchat.cli.pair_states import unused_drafts
    from specchat.config import cache_dir
    from specchat.config.drafter_states import kept_states
    from specchat.models.hub import model_state
    from specchat.models.hub.pair_check import broken
    from specchat.models.hub.trained_drafters import listed_drafters

    problems = []
    table = plain_table("model", "state", "size", "pairs", "licence")
    for spec in catalog.models.values():
        state, problem = model_state.state(spec), broken(spec)
        problems += [(spec.name, problem)] if problem else []
        used = catalog.pairs_using(spec.name)
        pairs = ", ".join(f"{one.name} (unused)" if spec.name in unused_drafts(one) else one.name for one in used)
        size = "no weights" if spec.scripted else _sizes(state.kind, state.disk_bytes, state.total_bytes)
        _add_row(table, spec.name, _state_cell(state.kind, problem), size, pairs, spec.licence)
    drafters = plain_table("trained drafter", "state", "size", "method", "target", "licence")
    for one in listed_drafters(catalog, methods_with_weights()):
        problems += [(one.name, one.problem)] if one.problem else []
        size = _sizes(one.state, one.disk_bytes, one.total_bytes)
        _add_row(drafters, one.name, _state_cell(one.state, one.problem), size, one.method, one.target, one.licence)
    console = Console(width=table_width())
    console.print(table)
    if drafters.row_count:
        console.print()
        console.print(drafters)
    for name, problem in problems:
        console.print(Text(f"\n✕ {one_line(name)}: {visible(problem)}", "red"), soft_wrap=True)
    for name, learnt_bytes in kept_states().items():
        learnt = f"{name} has learnt {sized(learnt_bytes)} from your chats"
        forgets = f"`specchat models erase-state {name}` forgets it"
        console.print(Text(f"\n{learnt}; {forgets}", "dim"), soft_wrap=True)
    console.print(Text(f"\nweights live in {cache_dir() / 'models'}; pull a pair or a model by its name", "dim"))


def _add_row(table: Table, *cells: str | Text) -> None:
    """A row whose texts are shown as they are: names from files are not parsed as markup."""
    from rich.text import Text

    table.add_row(*(Text(visible(cell)) if isinstance(cell, str) else cell for cell in cells))


def _state_cell(state: str, problem: str) -> Text:
    from rich.text import Text

    glyphs = {"ready": ("●", "green"), "unverified": ("◐", "yellow"), "partial": ("◐", "yellow")}
    glyphs |= {"missing": ("○", "dim"), "broken": ("✕", "red")}
    kind = "broken" if problem else state
    glyph, style = glyphs[kind]
    return Text(f"{glyph} {kind}", style)


def _sizes(kind: str, disk_bytes: int, total_bytes: int | None) -> str:
    if kind in ("ready", "unverified"):
        return sized(disk_bytes)
    if total_bytes is None:
        return f"{sized(disk_bytes)} so far" if kind == "partial" else "unknown"
    total = sized(total_bytes)
    return f"{sized(disk_bytes)} of {total}" if kind == "partial" else f"{total} to pull"
