"""What a trained drafter is worth: a short bench against the pair's default, and whether to use it from now on."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from specchat.bench.report import Report
    from specchat.config.trained_drafters import TrainedDrafter
    from specchat.settings import Settings

_QUESTIONS = 8
_TOKENS = 96
_BAR = 40
_WIDTH = 110
"""Columns of the table where it goes into a file or a pipe."""


@dataclass(frozen=True)
class Way:
    """One way to use a trained drafter: settings by their own names."""

    name: str
    changes: Mapping[str, Any]


@dataclass(frozen=True)
class Verdict:
    """What was measured, and the way that was quicker than the pair's default; None where none was.

    Args:
        default, best: ratios to plain decoding, with their 95 % range.
    """

    report: Report
    default: tuple[float, float | None, float | None]
    best: tuple[float, float | None, float | None]
    way: Way | None


def ways_to_use(settings: Settings, trained: TrainedDrafter) -> list[Way]:
    """The drafter alone, in trees of its own, and merged with what the pair drafts with, in the pair's trees."""
    method, weights = trained.method, {f"{trained.method}.weights": trained.name}
    shape = {"policy": "best_first", "rule": "follow", "controller": "goodput", "nodes": 8, "depth": 4, "width": 4}
    other = "suffix" if settings.drafter in ("none", "merge", method) else settings.drafter
    kept = {key: getattr(settings, key) for key in shape}
    return [
        Way("alone", {**shape, "drafter": method, **weights}),
        Way(f"merged with {other}", {**kept, "drafter": "merge", **weights, "merge.of": f"{other}+{method}"}),
    ]


def measure(settings: Settings, trained: TrainedDrafter) -> Verdict:
    """Let the pair's default and the ways to use the drafter answer the same questions."""
    from specchat.bench.runner import Bench, Plan, Progress
    from specchat.bench.workloads import own_workload

    ways = ways_to_use(settings, trained)
    compare = ",".join(["auto", *(as_configuration(way) for way in ways)])
    workload = own_workload().first_turns().limited(_QUESTIONS)
    plan = Plan(settings.but({"max_tokens": _TOKENS, "seed": 0}), workload, compare, perplexity=False)
    progress = Progress(
        say=lambda what: None, step=lambda who, what: typer.echo(f"measuring: {who} · {what}", err=True)
    )
    return judge(Bench(plan, progress).run(), ways)


def judge(report: Report, ways: Sequence[Way]) -> Verdict:
    """The quickest way, if it is quicker than the pair's default and its texts are the target's own."""
    _, default, *others = report.runs[0].results
    ratios = [_ratio(result) for result in (default, *others)]
    right = [result.same_text is None or result.same_text.ok for result in others]
    able = [(ratio, way) for ratio, way, fine in zip(ratios[1:], ways, right, strict=True) if fine]
    best, way = max(able, key=lambda found: found[0][0], default=(ratios[0], None))
    return Verdict(report, ratios[0], best, way if best[0] > ratios[0][0] else None)


def as_configuration(way: Way) -> str:
    """The same as `bench --compare` takes it."""
    names = ":".join(str(way.changes[key]) for key in ("drafter", "policy", "rule", "controller"))
    rest = [f"{key}={value}" for key, value in way.changes.items() if "." in key or key in ("width", "depth", "nodes")]
    return ":".join([names, *rest])


def curve_lines(points: Sequence[tuple[int, float]]) -> list[str]:
    """τ over the tokens seen, as bars of text."""
    highest = max((tau for _, tau in points), default=1.0)
    scale = _BAR / max(highest - 1.0, 1e-9)
    return [f"{tokens / 1000:>8.0f} k  {tau:.2f}  {'█' * round((tau - 1.0) * scale)}" for tokens, tau in points]


def print_verdict(pair: str, trained: TrainedDrafter, verdict: Verdict) -> None:
    """The table, the curve, and a question where there is a terminal to answer on."""
    from rich.console import Console

    from specchat.bench.report_tables import report_tables

    width = None if sys.stdout.isatty() else _WIDTH
    Console(file=sys.stdout, highlight=False, width=width).print(report_tables(verdict.report))
    typer.echo("τ of chains of 4 on texts it never learnt from, by tokens seen:")
    figures = trained.figures
    for line in curve_lines(list(zip(figures["curve_tokens"], figures["curve_tau"], strict=True))):
        typer.echo(line)
    if verdict.way is None:
        typer.echo(f"{pair}'s default stays the quickest: {verdict.default[0]:.2f} × plain; nothing was changed")
        return
    gain = f"{verdict.best[0]:.2f} × plain, {pair}'s default {verdict.default[0]:.2f} ×"
    typer.echo(f"quickest: {trained.name} {verdict.way.name}, {gain}")
    if sys.stdin.isatty() and typer.confirm("Use it from now on?"):
        use(pair, verdict.way)
    else:
        typer.echo("to use it from now on:")
        for name, value in verdict.way.changes.items():
            typer.echo(f"  specchat config set {name} {value} --pair {pair}")


def use(pair: str, way: Way) -> None:
    """Make this way the one that the pair starts with."""
    from specchat.config.settings_saving import set_for_pair

    for name, value in way.changes.items():
        typer.echo(set_for_pair(pair, name, value).line())


def as_json(verdict: Verdict) -> dict[str, Any]:
    """The verdict for a program."""
    way = verdict.way
    return {
        "default_ratio": verdict.default,
        "best_ratio": verdict.best,
        "settings": None if way is None else dict(way.changes),
    }


def _ratio(result: Any) -> tuple[float, float | None, float | None]:
    group = result.group()
    if group is None:
        return 0.0, None, None
    return group.ratio.value, group.ratio.low, group.ratio.high
