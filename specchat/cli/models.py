"""`specchat models`: see which weights are here, pull, check and remove them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from specchat.cli.flags import model_names

if TYPE_CHECKING:
    from specchat.config import Catalog, ModelSpec
    from specchat.models.fetch import Progress, State

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
        _print_json(catalog)
    else:
        _print_table(catalog)


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
        with _reporter() if output == "text" else nullcontext(_print_event) as report:
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
            with _reporter() as report:
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


# ------------------------------------------------------------------------------------------------- choosing


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


def can_ask() -> bool:
    return sys.stdin.isatty()


def _interruptible(work: Callable[[], Any]) -> Any:
    """The work's result; Ctrl+C becomes the error that says what happens next (exit code 130)."""
    from specchat.models.fetch import Cancelled

    try:
        return work()
    except KeyboardInterrupt:
        raise Cancelled("stopped; what is complete is kept, and the next pull goes on from there") from None


# --------------------------------------------------------------------------------------------------- listing


def _print_json(catalog: Catalog) -> None:
    import json

    from specchat.models import fetch
    from specchat.models.inspect.pair_check import broken

    models = []
    for spec in catalog.models.values():
        state, problem = fetch.state(spec), broken(spec)
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
    pairs = [
        {"name": pair.name, "target": pair.target, "draft": pair.draft, "summary": pair.summary, "notes": pair.notes}
        for pair in catalog.pairs.values()
    ]
    typer.echo(json.dumps({"models": models, "pairs": pairs}, indent=2, ensure_ascii=False))


def _print_table(catalog: Catalog) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from specchat.cli.streams import table_width
    from specchat.config import cache_dir
    from specchat.engine.protocol.text import visible
    from specchat.models import fetch
    from specchat.models.inspect.pair_check import broken

    glyphs = {"ready": ("●", "green"), "unverified": ("◐", "yellow"), "partial": ("◐", "yellow")}
    glyphs |= {"missing": ("○", "dim"), "broken": ("✕", "red")}
    problems = []
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("model", "state", "size", "pairs", "licence"):
        table.add_column(heading, no_wrap=heading in ("model", "state", "size"), overflow="fold")
    for spec in catalog.models.values():
        state = fetch.state(spec)
        problem = broken(spec)
        problems += [f"{spec.name}: {visible(problem)}"] if problem else []
        kind = "broken" if problem else state.kind
        glyph, style = glyphs[kind]
        pairs = ", ".join(pair.name for pair in catalog.pairs_using(spec.name))
        cells = (spec.name, Text(f"{glyph} {kind}", style), _size_of(spec, state), pairs, spec.licence)
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))
    console = Console(width=table_width())
    console.print(table)
    for problem in problems:
        console.print(Text(f"\n✕ {problem}", "red"), soft_wrap=True)
    console.print(Text(f"\nweights live in {cache_dir() / 'models'}; pull a pair or a model by its name", "dim"))


def _size_of(spec: ModelSpec, state: State) -> str:
    if spec.scripted:
        return "no weights"
    if state.kind in ("ready", "unverified"):
        return sized(state.disk_bytes)
    if state.total_bytes is None:
        return f"{sized(state.disk_bytes)} so far" if state.kind == "partial" else "unknown"
    total = sized(state.total_bytes)
    return f"{sized(state.disk_bytes)} of {total}" if state.kind == "partial" else f"{total} to pull"


def sized(count: float) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


# -------------------------------------------------------------------------------------------------- progress


def _silent(_: str) -> None: ...


def _print_event(progress: Progress) -> None:
    """One line of the engine's own protocol, for a program that watches."""
    from specchat.engine.protocol.codec import encode
    from specchat.engine.protocol.events import Loading

    p = progress
    sys.stdout.buffer.write(encode(Loading(stage=p.stage, item=p.item, done=p.done, total=p.total, rate=p.rate)))
    sys.stdout.buffer.flush()


@contextmanager
def _reporter() -> Iterator[Callable[[Progress], None]]:
    """Something to tell progress to: a bar on a terminal, plain lines elsewhere; both on standard error."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    text = TextColumn("{task.description}", markup=False)
    with Bars(text, BarColumn(), DownloadColumn(), TransferSpeedColumn(), console=Console(stderr=True)) as bars:
        yield _BarPerItem(bars)


class _BarPerItem:
    """One bar for each stage of each item."""

    def __init__(self, bars: Any) -> None:
        self._bars = bars
        self._tasks: dict[str, Any] = {}

    def __call__(self, progress: Progress) -> None:
        label = f"{progress.stage:6} {progress.item}"
        if label not in self._tasks:
            self._tasks[label] = self._bars.add_task(label, total=None)
        self._bars.update(self._tasks[label], completed=progress.done, total=progress.total or None)


@dataclass
class _Lines:
    """A line when an item begins, every two seconds while it goes on, and when it is through."""

    interval_s: float = 2.0
    _label: str = ""
    _last_s: float = 0.0
    _through: bool = False

    def __call__(self, progress: Progress) -> None:
        label = f"{progress.stage} {progress.item}"
        through = 0 < progress.total == progress.done
        now = time.monotonic()
        soon = now - self._last_s < self.interval_s and not (through and not self._through)
        if label == self._label and soon:
            return
        self._label, self._last_s, self._through = label, now, through
        typer.echo(f"{label}{_how_far(progress)}", err=True)


def _how_far(progress: Progress) -> str:
    if not progress.total:
        return f": {sized(progress.done)}" if progress.done else ""
    rate = f", {sized(progress.rate)}/s" if progress.rate else ""
    return f": {100 * progress.done // progress.total} % of {sized(progress.total)}{rate}"
