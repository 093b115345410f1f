"""`specchat bench` of a model: chooses what is measured, runs it, prints and writes the report."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specchat.cli.flags import Output
from specchat.config.file_reading import is_named_pipe
from specchat.errors import UsageError, os_errors_as
from specchat.settings import GREEDY, Settings

if TYPE_CHECKING:
    from rich.console import RenderableType

    from specchat.bench.configurations import SpeltOut
    from specchat.bench.report import Report
    from specchat.bench.runner import BenchPlan, BenchProgress
    from specchat.bench.workloads import Workload

_MAX_TOKENS = 128

_WIDTH = 110
"""Columns of a table that is written into a file or a pipe."""


def chosen_questions(source: str, categories: list[str] | None, limit: int, first_turns: bool) -> Workload:
    """The questions of a source, a part of them: of all categories where that is None, all of them where limit is 0."""
    from specchat.bench.workloads import find_workload

    workload = find_workload(source)
    if categories is not None:
        workload = workload.only(categories)
    if limit:
        workload = workload.limited(limit)
    return workload.first_turns() if first_turns else workload


@dataclass(frozen=True)
class Request:
    """The flags of `specchat bench` besides the settings."""

    compare: str
    floor: bool
    questions: Callable[[], Workload]
    dtypes: str
    warm: bool
    peers: bool
    perplexity: bool
    output: Output
    save: Path | None
    plot: Path | None


def bench_model(settings: dict[str, Any], request: Request) -> int:
    """Measure, print and write the report.

    Returns:
        The exit code: 0; 1 where texts differ or a drafter is too slow; 130 where it was interrupted.
    """
    plan = _plan(settings, request)
    interrupted = 0
    with _progress() as progress:
        from specchat.bench.report_tables import report_json
        from specchat.bench.runner import Bench

        run = Bench(plan, progress)
        try:
            report = run.run()
        except KeyboardInterrupt:
            report, interrupted = run.report(), 130
    _print(report, request.output)
    code = interrupted or (_judge_floor(report, request.output) if request.floor else 0)
    if request.save is not None:
        with os_errors_as(UsageError, f"--save {request.save} cannot be written"):
            request.save.write_bytes(report_json(report))
    if request.plot is not None:
        from specchat.bench.plots import draw

        with suppress(UsageError) if code else nullcontext():  # interrupted: there may be nothing to draw yet
            draw(report, request.plot)
    return code or (0 if report.ok else 1)


def bench_rules(settings: dict[str, Any], questions: Callable[[], Workload], output: Output, save: Path | None) -> int:
    from specchat.bench.configurations import load_pair, prepare_environment, settings_in_force
    from specchat.config import load_catalog, settings_of

    chosen = settings_in_force(settings, max_tokens=_MAX_TOKENS, seed=0)
    prepare_environment(chosen.threads)  # before torch is imported

    import msgspec

    from specchat.bench.rule_table import RuleBench, drawing, rule_tables
    from specchat.decoding.assemble import sampling

    if save is not None:
        _accept_writable(save)
    drafting = chosen.but({"drafter": drawing(chosen).name, "controller": "fixed"})
    own = {name: getattr(settings_of(load_catalog().pair(chosen.pair)), name) for name in GREEDY}
    warm = chosen.temperature or 0.8
    samplings = {f"temperature {warm}": drafting.but({"temperature": warm}), "as its chats": drafting.but(own)}
    if not own["temperature"] or sampling(samplings["as its chats"]) == sampling(samplings[f"temperature {warm}"]):
        del samplings["as its chats"]
    workload = questions()
    with _progress() as progress:
        progress.say(f"loading {chosen.pair}")
        pair = load_pair(drafting, progress.say)
        progress.begin(f"{pair.name} {pair.precision}", len(samplings) * len(workload.questions))
        report = RuleBench(pair, drafting, samplings, progress.step).run(workload.questions)
    data = msgspec.json.format(msgspec.json.encode(report), indent=2)
    if output is Output.text:
        _draw(rule_tables(report))
    else:
        print((data if output is Output.json else msgspec.json.encode(report)).decode())
    if save is not None:
        with os_errors_as(UsageError, f"--save {save} cannot be written"):
            save.write_bytes(data)
    return 0


def _plan(settings: dict[str, Any], request: Request) -> BenchPlan:
    """Everything that can be refused is, before prompts are fetched and models loaded."""
    from specchat.bench.configurations import prepare_environment, settings_in_force

    chosen = settings_in_force(settings, max_tokens=_MAX_TOKENS, seed=0)
    prepare_environment(chosen.threads)  # before torch is imported

    from specchat.bench.configurations import EVERY, SpeltOut, parse_configurations, separate
    from specchat.bench.plots import accept_plot_file
    from specchat.bench.runner import BenchPlan, parse_dtypes

    spelt = SpeltOut(request.compare)
    if request.floor or EVERY in separate(request.compare):
        spelt = _spelt_out(request.compare, chosen, request.floor)
    parse_configurations(spelt.compare, chosen)
    precisions = parse_dtypes(request.dtypes)
    if request.plot is not None:
        accept_plot_file(request.plot)
    if request.save is not None:
        _accept_writable(request.save)
    workload = request.questions()
    return BenchPlan(
        chosen, workload, spelt.compare, precisions, request.warm, request.peers, request.perplexity, spelt
    )


def _spelt_out(compare: str, chosen: Settings, floor: bool) -> SpeltOut:
    """The comparison with every drafter that the pair has what it needs for, and why others are left out."""
    from specchat.bench.configurations import SpeltOut, with_every
    from specchat.bench.interleaved_run import floor_comparison, missing_for_drafters
    from specchat.config import load_catalog
    from specchat.config.datastore_files import datastore_files
    from specchat.config.trained_drafters import DRAFT_MODEL
    from specchat.engine.server.pair_loading import Loader

    catalog = load_catalog()
    trained = Loader(catalog, lambda event: None, lambda: False).drafters_here(chosen).fitting
    target = catalog.pair(chosen.pair).target
    datastore = any(one.header is not None and one.header.target == target for one in datastore_files())
    methods = {drafter.method for drafter in trained}
    has_draft_model = catalog.pair(chosen.pair).draft is not None or DRAFT_MODEL in methods
    missing = missing_for_drafters(has_draft_model, methods, datastore)
    return SpeltOut(floor_comparison(compare, chosen, missing)) if floor else with_every(compare, missing)


def _print(report: Report, output: Output) -> None:
    from specchat.bench.report_tables import reply_lines, report_json, report_tables

    if output is Output.json:
        print(report_json(report).decode())
    elif output is Output.jsonl:
        for line in reply_lines(report):
            print(line)
    else:
        _draw(report_tables(report))


def _draw(tables: RenderableType) -> None:
    from rich.console import Console

    width = None if sys.stdout.isatty() else _WIDTH
    Console(file=sys.stdout, highlight=False, width=width).print(tables)


def _judge_floor(report: Report, output: Output) -> int:
    from specchat.bench.interleaved_run import floor_verdict

    lines, below = floor_verdict(report)
    if output is Output.text:
        print(*lines, sep="\n")
    return int(below > 0)


def _accept_writable(file: Path) -> None:
    if is_named_pipe(file):
        raise UsageError(f"--save {file} cannot be written: it is a pipe, which may have no reader")
    folder = file.absolute().parent
    if os.path.isdir(file) or not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise UsageError(f"--save {file} cannot be written")


@contextmanager
def _progress() -> Iterator[BenchProgress]:
    """A bar on standard error where that is a terminal; otherwise a line for each stage."""
    from specchat.bench.runner import BenchProgress

    if not sys.stderr.isatty():
        yield BenchProgress(
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

        yield BenchProgress(
            say=lambda what: bar.update(task, description=what),
            begin=begin,
            step=lambda who, what: bar.update(task, description=f"{who} · {what}", advance=1),
        )
