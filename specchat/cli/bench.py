"""`specchat bench`: plain decoding against what speculates, on this machine, with the texts compared."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from specchat.cli.flags import Output, takes_settings
from specchat.errors import UsageError, nearest


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
            help="Configurations, separated by commas: auto, or drafter[:policy[:rule[:controller]]][:key=value…], "
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
    limit: Annotated[
        int, typer.Option(metavar="<int>", min=0, help="The most questions of each category; 0 is all.")
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
    from specchat.config.directories import expanded

    save = expanded(str(save), "--save") if save is not None else None
    plot = expanded(str(plot), "--plot") if plot is not None else None
    if what == "ui":
        from specchat.cli.bench_ui import bench_ui

        raise typer.Exit(0 if bench_ui(settings, output) else 1)
    if what == "gpu":
        from specchat.cli.bench_gpu import bench_gpu

        raise typer.Exit(bench_gpu(settings, save))
    if what != "model":
        known = nearest(what, ("model", "ui", "gpu"))
        raise UsageError(f"bench {what!r}: there is nothing of that name to measure{known}")
    from specchat.cli.bench_model import Questions, Request, bench_model

    categories = [name.strip() for name in category.split(",") if name.strip()] if category else None
    questions = Questions(prompts, categories, limit, first_turns)
    request = Request(compare, floor, questions, dtypes, warm, peers, perplexity, output, save, plot)
    raise typer.Exit(bench_model(settings, request))
