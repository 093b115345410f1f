"""`specchat models find`, `add` and `forget`: models that other programs keep here, and pairs of your own."""

from __future__ import annotations

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from specchat.cli.progress import fetch_reporter, sized
from specchat.cli.streams import confirmed, plain_table, table_width
from specchat.engine.protocol.text import one_line
from specchat.errors import DamagedWeights, UsageError, nearest, short

if TYPE_CHECKING:
    from specchat.config import Catalog
    from specchat.models.hub.found_pairs import Findings, FoundPair

FindOutput = Literal["table", "json"]


def find(
    add: Annotated[
        str, typer.Option("--add", metavar="NUMBER|NAME", help="add this one of the pairs found", show_default=False)
    ] = "",
    output: Annotated[FindOutput, typer.Option(help="table or json")] = "table",
) -> None:
    """Find models that Ollama, LM Studio, llama.cpp and the hub's client keep here, and the pairs they make.

    They are read where they lie and never copied. Two models with the same tokens make a pair: the smaller one drafts.
    Where there is none, a much smaller one with other tokens drafts, and its guesses are translated.
    """
    from specchat.config import load_catalog
    from specchat.models.hub.found_models import Surroundings, find_models
    from specchat.models.hub.found_pairs import find_pairs

    catalog = load_catalog()
    here = Surroundings(Path(os.path.expanduser("~")), os.environ)
    findings = find_pairs(catalog, find_models(here))
    if add:
        typer.echo(_add(catalog, _chosen(findings, add)))
    elif output == "json":
        pairs = [_as_object(pair) for pair in findings.pairs]
        refused = [{"name": model.name, "path": str(model.path), "why": why} for model, why in findings.refused]
        typer.echo(json.dumps({"pairs": pairs, "refused": refused}, indent=2))
    else:
        _print_table(findings)


def _chosen(findings: Findings, wanted: str) -> FoundPair:
    names = {pair.name: pair for pair in findings.pairs}
    numbers = {str(number): pair for number, pair in enumerate(findings.pairs, 1)}
    pair = names.get(wanted) or numbers.get(wanted)
    if pair is None:
        numbered = f"numbers 1 to {len(numbers)}" if numbers else "nothing was found"
        raise UsageError(f"--add {short(wanted)} is not one of the pairs found ({numbered}){nearest(wanted, names)}")
    return pair


def _add(catalog: Catalog, found: FoundPair) -> str:
    """Write the pair down, as `models add` does; what to say about it."""
    from specchat.config.settings_saving import write_pair
    from specchat.models.hub.add_pair import NewPair

    if found.added:
        return f"{found.added} was added before"
    models = [found.target, *([found.draft] if found.draft else [])]
    with TemporaryDirectory() as scratch:
        new = NewPair(catalog, Path(scratch))
        new.names = {model.path: model.name for model in models}
        new.sampling = found.target.sampling
        drafts = [str(found.draft.path)] if found.draft else []
        pair = new.pair(found.name, str(found.target.path), drafts, _summary(found))
    if pair is None:
        raise DamagedWeights("; ".join(new.problems))
    file = write_pair(pair, tuple(new.fresh))
    return f"added {found.name} ({_summary(found)}) to {file}; specchat --pair {found.name}"


def _summary(pair: FoundPair) -> str:
    """`llama3.2:3b, drafted for by llama3.2:1b · Ollama`."""
    drafted = f", drafted for by {pair.draft.name}" if pair.draft else ", drafts looked up in the text"
    drafted += ", which has other tokens: its guesses are translated" if pair.translated else ""
    programs = dict.fromkeys(model.program for model in (pair.target, pair.draft) if model)
    return one_line(f"{pair.target.name}{drafted} · {', '.join(programs)}")


def _as_object(pair: FoundPair) -> dict[str, Any]:
    return {
        "name": pair.name,
        "target": pair.target.name,
        "draft": pair.draft.name if pair.draft else None,
        "target_path": str(pair.target.path),
        "draft_path": str(pair.draft.path) if pair.draft else None,
        "summary": _summary(pair),
        "disk_bytes": pair.disk_bytes,
        "needed_bytes": pair.needed_bytes,
        "free_bytes": pair.free_bytes,
        "fits": pair.fits,
        "added": pair.added,
        "translated": pair.translated,
    }


def _print_table(findings: Findings) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(width=table_width())
    if not findings.pairs:
        console.print("no models of other programs were found here that can run")
    else:
        table = plain_table("", "pair", "on disk", "memory", "what it is", whole=4)
        for number, pair in enumerate(findings.pairs, 1):
            memory = {None: "not known", True: "fits in memory", False: "does not fit"}[pair.fits]
            known = "added" if pair.added else memory
            table.add_row(*map(Text, (str(number), pair.name, sized(pair.disk_bytes), known, _summary(pair))))
        console.print(table)
    for model, why in findings.refused:
        console.print(Text(one_line(f"✕ {model.name} ({model.program}): {why}"), "dim"), soft_wrap=True)
    if findings.pairs:
        console.print(Text("\n`specchat models find --add NUMBER` adds one; its files stay where they are", "dim"))


_WHAT = "a .gguf file, a folder of safetensors, a hub repository (owner/name, owner/name:Q4_K_M) or a known model"

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
    from specchat.models.published_drafter import add_published

    if with_draft:
        raise UsageError("--drafter adds a trained drafter and --draft a pair; add one after the other")
    catalog = load_catalog()
    model = catalog.model(catalog.pairs[target].target if target in catalog.pairs else target)
    with fetch_reporter() as report:
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
