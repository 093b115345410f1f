"""`specchat models list`: every model with its state, size, pairs and licence, as a table or as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from specchat.cli.sizes import sized

if TYPE_CHECKING:
    from specchat.config import Catalog, ModelSpec
    from specchat.models.fetch import State


def print_json(catalog: Catalog) -> None:
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


def print_table(catalog: Catalog) -> None:
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
