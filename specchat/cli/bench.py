"""`specchat bench`: plain decoding against what speculates, on this machine, with the texts compared."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specchat.cli.flags import Output, takes_settings
from specchat.errors import UsageError, nearest

if TYPE_CHECKING:
    from specchat.bench.report import Report
    from specchat.bench.runner import Progress

_MAX_TOKENS = 128

_WIDTH = 110
"""Columns of a table that is written into a file or a pipe."""


@takes_settings
def bench(
    settings: dict[str, Any],
    what: Annotated[
        str,
        typer.Argument(
            help="model; ui: what the app itself costs, with --pair also what it costs the engine; or gpu: what this "
            "machine's GPU gives, with --pair also on real text."
        ),
    ] = "model",
    compare: Annotated[
        str,
        typer.Option(
            help="Configurations, with commas between: auto, or drafter[:policy[:rule[:controller]]][:key=value…], "
            "such as prompt_lookup:chain:nodes=4. Plain decoding is always measured."
        ),
    ] = "auto",
    floor: Annotated[
        bool,
        typer.Option(
            "--floor",
            help="Measure every drafter with every policy under goodput; exit code 1 where one is slower than 0.97 × "
            "plain. --compare then names a part of them: drafter[:policy][:key=value…].",
        ),
    ] = False,
    prompts: Annotated[
        str,
        typer.Option(help="own, a file (MT-Bench, Spec-Bench, HumanEval), or a prompt set of mirrors.toml: mt-bench."),
    ] = "own",
    limit: Annotated[int, typer.Option(min=0, help="At most so many questions, of every category; 0 is all.")] = 0,
    category: Annotated[str, typer.Option(help="Only these categories, with commas.", show_default=False)] = "",
    first_turns: Annotated[bool, typer.Option("--first-turns", help="Leave follow-up questions out.")] = False,
    dtypes: Annotated[
        str, typer.Option(help="Number formats to compare, such as float32,bfloat16.", show_default=False)
    ] = "",
    warm: Annotated[
        bool, typer.Option("--warm", help="Also measure drafters that have seen the replies to other prompts.")
    ] = False,
    peers: Annotated[
        bool, typer.Option("--peers", help="Also measure transformers and, if installed, llama.cpp.")
    ] = False,
    perplexity: Annotated[bool, typer.Option(help="Read a fixed text in every number format.")] = True,
    output: Annotated[Output, typer.Option(help="text; one JSON object; or a JSON line for each reply.")] = Output.text,
    save: Annotated[Path | None, typer.Option(help="Write the JSON report here.", show_default=False)] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the report: a .png, .svg or .pdf file.", show_default=False)
    ] = None,
) -> None:
    """Measure speculation against plain decoding, and check that the text is the same.

    Drafters that learn start cold with every prompt; with --warm they are measured a second time after the replies
    to other prompts, never after the measured ones.
    """
    if what == "ui":
        from specchat.cli.bench_ui import bench_ui

        raise typer.Exit(0 if bench_ui(settings, output) else 1)
    if what == "gpu":
        from specchat.cli.bench_gpu import bench_gpu

        raise typer.Exit(bench_gpu(settings, save))
    if what != "model":
        known = nearest(what, ("model", "ui", "gpu"))
        raise UsageError(f"bench {what!r}: there is nothing of that name to measure{known}")

    from specchat.bench.loaded import prepare_environment, settings_in_force

    chosen = settings_in_force(settings, max_tokens=_MAX_TOKENS, seed=0)
    prepare_environment(chosen.threads)

    from specchat.bench.compare import parse_configurations
    from specchat.bench.plots import accept_plot_file
    from specchat.bench.prompt_sets import find_workload
    from specchat.bench.runner import Bench, Plan, parse_dtypes

    if floor:
        from specchat.bench.floor import floor_comparison
        from specchat.config import load_catalog

        compare = floor_comparison(compare, chosen, load_catalog().pair(chosen.pair).draft is not None)
    parse_configurations(compare, chosen)  # a typing error is refused before prompts are fetched
    precisions = parse_dtypes(dtypes)
    if plot is not None:
        accept_plot_file(plot)
    if save is not None:
        _accept_writable(save)
    workload = find_workload(prompts)
    if category:
        workload = workload.only([name.strip() for name in category.split(",") if name.strip()])
    if limit:
        workload = workload.limited(limit)
    if first_turns:
        workload = workload.first_turns()

    code = 0
    with _progress() as progress:
        run = Bench(Plan(chosen, workload, compare, precisions, warm, peers, perplexity), progress)
        try:
            report = run.run()
        except KeyboardInterrupt:
            report, code = run.report(), 130
    _print(report, output)
    if floor:
        code = code or _judge_floor(report, output)
    if save is not None:
        _save(report, save)
    if plot is not None:
        from specchat.bench.plots import draw

        with suppress(UsageError) if code else nullcontext():  # interrupted: there may be nothing to draw yet
            draw(report, plot)
    raise typer.Exit(code or (0 if report.ok else 1))


def _print(report: Report, output: Output) -> None:
    from specchat.bench.export import reply_lines, report_json

    if output is Output.json:
        print(report_json(report).decode())
    elif output is Output.jsonl:
        for line in reply_lines(report):
            print(line)
    else:
        from rich.console import Console

        from specchat.bench.table import report_tables

        width = None if sys.stdout.isatty() else _WIDTH
        Console(file=sys.stdout, highlight=False, width=width).print(report_tables(report))


def _judge_floor(report: Report, output: Output) -> int:
    from specchat.bench.floor import floor_lines, standings

    if output is Output.text:
        print(*floor_lines(report), sep="\n")
    return int(any(standing.below for standing in standings(report)))


def _accept_writable(file: Path) -> None:
    folder = file.absolute().parent
    if file.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(f"--save {file} cannot be written")


def _save(report: Report, file: Path) -> None:
    from specchat.bench.export import report_json

    try:
        file.write_bytes(report_json(report))
    except OSError as error:
        raise UsageError(f"--save {file} cannot be written: {error.strerror}") from None


@contextmanager
def _progress() -> Iterator[Progress]:
    """A bar on standard error where that is a terminal; otherwise a line for each stage."""
    from specchat.bench.runner import Progress

    if not sys.stderr.isatty():
        yield Progress(
            say=lambda what: None,
            begin=lambda title, steps: print(f"{title}: {steps} replies", file=sys.stderr),
        )
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def begin(title: str, steps: int) -> None:
            bar.reset(task, total=steps, description=title)

        yield Progress(
            say=lambda what: bar.update(task, description=what),
            begin=begin,
            step=lambda who, what: bar.update(task, description=f"{who} · {what}", advance=1),
        )
