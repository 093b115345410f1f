"""`specchat models list`: every model and trained drafter with state, size and licence, as tables or as JSON."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import typer

from specchat.cli.progress import sized
from specchat.cli.streams import table_width
from specchat.decoding.families import methods_with_weights
from specchat.engine.protocol.text import one_line, visible

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from specchat.config import Catalog, PairSpec
    from specchat.models.hub.trained_drafters import ListedDrafter


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
    typer.echo(
        json.dumps(
            {"models": models, "pairs": pairs, "drafters": drafters, "learnt_bytes": kept_states()},
            indent=2,
            ensure_ascii=False,
        )
    )


def _about_drafter(drafter: ListedDrafter) -> dict[str, Any]:
    about = dataclasses.asdict(drafter) | {"state": "broken" if drafter.problem else drafter.state}
    made = about.pop("drafter")
    if made is not None:
        about |= {"made": made["made"].isoformat(), "target_sha256": made["target_sha256"]}
        about |= {key: made[key] for key in ("options", "data", "figures")}
    return about


def print_table(catalog: Catalog) -> None:
    from rich.console import Console
    from rich.text import Text

    from specchat.config import cache_dir
    from specchat.config.drafter_states import kept_states
    from specchat.models.hub import model_state
    from specchat.models.hub.pair_check import broken
    from specchat.models.hub.trained_drafters import listed_drafters

    problems = []
    table = _table("model", "state", "size", "pairs", "licence")
    for spec in catalog.models.values():
        state, problem = model_state.state(spec), broken(spec)
        problems += [(spec.name, problem)] if problem else []
        pairs = ", ".join(_use(pair, spec.name) for pair in catalog.pairs_using(spec.name))
        size = "no weights" if spec.scripted else _sizes(state.kind, state.disk_bytes, state.total_bytes)
        _add_row(table, spec.name, _state_cell(state.kind, problem), size, pairs, spec.licence)
    drafters = _table("trained drafter", "state", "size", "method", "target", "licence")
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
        forgets = f"`specchat models erase-state {name}` forgets it"
        console.print(
            Text(f"\n{name} has learnt {sized(learnt_bytes)} from your chats; {forgets}", "dim"), soft_wrap=True
        )
    console.print(Text(f"\nweights live in {cache_dir() / 'models'}; pull a pair or a model by its name", "dim"))


def _table(*headings: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, heading in enumerate(headings):
        table.add_column(heading, no_wrap=place < 3, overflow="fold")
    return table


def _add_row(table: Table, *cells: str | Text) -> None:
    """A row whose texts are shown as they are: names from files are not parsed as markup."""
    from rich.text import Text

    table.add_row(*(Text(visible(cell)) if isinstance(cell, str) else cell for cell in cells))


def _use(pair: PairSpec, model: str) -> str:
    """The pair's name, with a remark where the model is a draft model that its settings do not use."""
    from specchat.cli.pair_states import unused_drafts

    return f"{pair.name} (unused)" if model in unused_drafts(pair) else pair.name


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
