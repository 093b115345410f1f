"""`specchat bench`: plain decoding against what speculates, the app's costs (`ui`), or a GPU's (`gpu`)."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import specchat
from specchat.cli.flags import Output, as_flags, takes_settings
from specchat.errors import UsageError, nearest

if TYPE_CHECKING:
    from specchat.bench.circumstances import Circumstances
    from specchat.tui.bench.budgets import BudgetFinding


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
            help="Configurations, separated by commas: auto, every (all drafters), or "
            "drafter[:policy[:rule[:controller]]][:key=value…], such as prompt_lookup:chain:nodes=4. Plain decoding is "
            "always measured."
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
    rules: Annotated[
        bool,
        typer.Option(
            "--rules",
            help="Compute the tokens a round under every lossless rule instead, from the laws of target and drafter at "
            "places of replies: at temperature 0.8 (or --temperature) and as the pair's chats sample.",
        ),
    ] = False,
    serve: Annotated[
        bool,
        typer.Option(
            "--serve",
            help="Measure `specchat serve` instead: tokens a second of 1, 2, 4 and 8 streams at a time, with and "
            "without guesses.",
        ),
    ] = False,
    prompts: Annotated[
        str,
        typer.Option(
            help="own, schemas, a file (MT-Bench, Spec-Bench, HumanEval), or a prompt set of mirrors.toml: mt-bench."
        ),
    ] = "own",
    limit: Annotated[
        int, typer.Option(metavar="<int>", min=0, help="The most questions, one of each category in turn; 0 is all.")
    ] = 0,
    category: Annotated[str, typer.Option(help="Only these categories, separated by commas.", show_default=False)] = "",
    first_turns: Annotated[bool, typer.Option("--first-turns", help="Leave follow-up questions out.")] = False,
    dtypes: Annotated[
        str, typer.Option(help="Number formats to compare, such as float32,bfloat16.", show_default=False)
    ] = "",
    warm: Annotated[
        bool, typer.Option("--warm", help="Also measure drafters that have seen the replies to other prompts.")
    ] = False,
    peers: Annotated[
        bool, typer.Option("--peers", help="Also measure transformers and, if installed, llama.cpp and OpenVINO GenAI.")
    ] = False,
    perplexity: Annotated[bool, typer.Option(help="Read a fixed text in every number format.")] = True,
    output: Annotated[Output, typer.Option(help="text; one JSON object; or a JSON line for each reply.")] = Output.text,
    save: Annotated[Path | None, typer.Option(help="Write the JSON report here.", show_default=False)] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the report: a .png, .svg or .pdf file.", show_default=False)
    ] = None,
) -> None:
    """Measure how much sooner text is written with guesses than without, and check that it is the same.

    Drafters that learn from replies forget them before every prompt; with --warm they are measured a second time after
    the replies to other prompts, never after the measured ones.
    """
    from specchat.config.directories import expanded

    save = expanded(str(save), "--save") if save is not None else None
    plot = expanded(str(plot), "--plot") if plot is not None else None
    if what == "ui":
        raise typer.Exit(0 if bench_ui(settings, output) else 1)
    if what == "gpu":
        raise typer.Exit(bench_gpu(settings, save))
    if what != "model":
        known = nearest(what, ("model", "ui", "gpu"))
        raise UsageError(f"bench {what!r}: there is nothing of that name to measure{known}")
    if serve:
        raise typer.Exit(bench_server(settings, output, save))
    from specchat.cli.bench_model import Request, bench_model, bench_rules, chosen_questions

    categories = [name.strip() for name in category.split(",") if name.strip()] if category else None
    questions = partial(chosen_questions, prompts, categories, limit, first_turns)
    if rules:
        raise typer.Exit(bench_rules(settings, questions, output, save))
    request = Request(compare, floor, questions, dtypes, warm, peers, perplexity, output, save, plot)
    raise typer.Exit(bench_model(settings, request))


_TOKENS = 96
"""Tokens of each reply of the server, unless --max-tokens says otherwise."""


def bench_server(settings: dict[str, Any], output: Output, save: Path | None) -> int:
    """Measure the server, print a table or one JSON object; 1 where a text differs from the one written alone."""
    from specchat.bench.circumstances import circumstances
    from specchat.bench.serving import measure_server, table
    from specchat.engine.client.start_engine import check_pair

    check_pair(settings)
    words = as_flags({name: value for name, value in settings.items() if name != "max_tokens"})
    found = list(measure_server(words, int(settings.get("max_tokens", _TOKENS)), _say))
    _say("")
    about = circumstances()
    results = [{**asdict(one), "tokens_per_s": one.tokens_per_s} for one in found]
    report = json.dumps({"circumstances": asdict(about), "streams": results})
    if save is not None:
        save.write_text(report + "\n", encoding="utf-8")
    if output is Output.text:
        print("\n".join([*table(found), *_lines_of(about)]))
    else:
        print(report)
    return 0 if all(one.same_text for one in found) else 1


_FORMS: dict[str, Callable[[float], str]] = {
    "s": lambda value: f"{value * 1000:.1f} ms",
    "cores": lambda value: f"{value * 100:.1f} % of a core",
    "bytes": lambda value: f"{value / 1e6:.1f} MB",
    "bytes/s": lambda value: f"{value / 1e3:.1f} kB/s",
}


def bench_ui(settings: dict[str, Any], output: Output) -> bool:
    """Measure, print a table or one JSON object; says whether every budget was kept."""
    if sys.platform == "win32":
        raise UsageError("`specchat bench ui` needs pseudo-terminals, which Windows does not have")
    from specchat.bench.circumstances import circumstances
    from specchat.tui.bench.budgets import engine_with_app, findings

    found: list[BudgetFinding] = []
    for finding in chain(findings(_say), engine_with_app(_say, settings) if "pair" in settings else ()):
        found.append(finding)
        if output is Output.text:
            _say("")
            print(line_of(finding), flush=True)
    about = circumstances()
    if output is Output.text:
        print("\n".join(_lines_of(about)))
    else:
        results = [{**asdict(finding), "kept": finding.within_budget} for finding in found]
        print(json.dumps({"circumstances": asdict(about), "findings": results}))
    return all(finding.within_budget is not False for finding in found)


def line_of(finding: BudgetFinding) -> str:
    budget = "" if finding.budget is None else f"≤ {_shown(finding.budget, finding.unit)}"
    verdict = {True: "kept", False: "NOT KEPT", None: ""}[finding.within_budget]
    return f"{finding.name:52} {_shown(finding.value, finding.unit):>18}  {budget:20} {verdict}".rstrip()


def _lines_of(about: Circumstances) -> list[str]:
    busy = "" if about.load_average is None else f", load {about.load_average:.1f}"
    return [
        f"{about.processor}, {about.cores} cores{busy} · {about.made}",
        f"commit {about.commit} · {about.command}",
    ]


def _shown(value: float, unit: str) -> str:
    return _FORMS[unit](value) if unit in _FORMS else f"{value:.2f} {unit}"


def _say(what: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{what}", end="", file=sys.stderr, flush=True)
    elif what:
        print(what, file=sys.stderr)


_RESULT = Path("gpu-check/result.json")


def bench_gpu(settings: dict[str, Any], save: Path | None) -> int:
    """Measure, print Markdown, and say how it ended.

    A pair with a draft model is measured against transformers' assisted generation; the target of one without is
    widened.

    Raises:
        UsageError: the repository's tools are not here.
    """
    from specchat.config import load_catalog
    from specchat.models.hub import fetching

    repository = Path(specchat.__file__).parents[1]
    if not (repository / "tools" / "gpu").is_dir():
        raise UsageError("bench 'gpu' is one of the tools in specchat's repository, which is not here")
    sys.path.insert(0, str(repository))
    check = importlib.import_module("tools.gpu.run_parts").check
    setup_on = importlib.import_module("tools.gpu.setup").Setup.on

    device = settings.get("device", "auto")
    setup = setup_on(device, tiny=False)
    if "pair" in settings:
        catalog = load_catalog()
        models = catalog.models_of(catalog.pair(settings["pair"]))
        roles = ("target", "draft") if len(models) == 2 else ("weights",)
        setup = setup_on(
            device, False, **{role: fetching.fetch(model) for role, model in zip(roles, models, strict=True)}
        )
    say = partial(print, file=sys.stderr, flush=True)
    return int(check(setup, save or _RESULT, show=partial(print, end="\n\n", flush=True), say=say).code)
