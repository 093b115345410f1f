"""The verdict on a trained drafter: a short bench against the pair's default, and whether to use it from now on."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from specchat.cli.training_stops import RunningClock
from specchat.drafters import DRAFTERS
from specchat.drafters.members import Member
from specchat.engine.protocol.training_report import DEFAULT, PLAIN, Judged, MeasuredWay, table_lines, verdict_line

if TYPE_CHECKING:
    from specchat.bench.report import Report, Result
    from specchat.config.trained_drafters import TrainedDrafter
    from specchat.settings import Settings
    from specchat.training.job import Stage

_QUESTIONS = 8
_TOKENS = 96
_ATTEMPTS = 3
"""Measurements that were paused are made again, so often at most: a pause would count as time of a method."""


@dataclass(frozen=True)
class Way:
    """One way to use a trained drafter: settings by their own names."""

    name: str
    changes: Mapping[str, Any]


def ways_to_use(settings: Settings, trained: TrainedDrafter) -> list[Way]:
    """The drafter alone, in trees of its own, and merged with what the pair drafts with, in the pair's trees."""
    method = trained.method
    weights = {f"{method}.{DRAFTERS[method].weights_option}": trained.name}
    shape = {"policy": "best_first", "rule": "follow", "controller": "goodput", "nodes": 8, "depth": 4, "width": 4}
    kept = {key: getattr(settings, key) for key in shape}
    others, own = _partners(settings, method)
    merged = {**kept, "drafter": "merge", **weights, "merge.of": f"{others}+{own}"}
    return [Way("alone", {**shape, "drafter": method, **weights}), Way(f"merged with {others}", merged)]


def _partners(settings: Settings, method: str) -> tuple[str, Member]:
    """What the pair drafts with besides trained networks, `suffix` where that is nothing, and the network's own place
    in it: each with the options that the pair gives it."""
    members: Sequence[Member] = (Member(settings.drafter),)
    if settings.drafter == "merge":
        members = DRAFTERS["merge"].make_options(settings.options_for("merge")).members
    others = [
        str(member)
        for member in members
        if member.name not in ("none", method) and not DRAFTERS[member.name].needs_weights
    ]
    given = next((member.given for member in members if member.name == method), ())
    own = Member(method, tuple((option, value) for option, value in given if option != DRAFTERS[method].weights_option))
    return "+".join(others) or "suffix", own


def measure(
    settings: Settings, trained: TrainedDrafter, tell: Callable[[Stage], None], clock: RunningClock
) -> Judged | None:
    """Let the pair's default and the ways to use the drafter answer the same questions; None where that was paused
    each time."""
    from specchat.bench.runner import Bench, Plan, Progress
    from specchat.bench.workloads import own_workload

    ways = ways_to_use(settings, trained)
    compare = ",".join(["auto", *(as_configuration(way) for way in ways)])
    workload = own_workload().first_turns().limited(_QUESTIONS)
    plan = Plan(settings.but({"max_tokens": _TOKENS, "seed": 0}), workload, compare, perplexity=False)
    for _ in range(_ATTEMPTS):
        pauses = clock.pauses
        measuring = _Measuring(tell)
        report = Bench(plan, Progress(begin=measuring.begin, step=measuring.step)).run()
        if clock.pauses == pauses:
            return judge(report, ways)
    return None


class _Measuring:
    """The bench's progress, as a stage of the training."""

    def __init__(self, tell: Callable[[Stage], None]) -> None:
        self._tell = tell
        self._done = self._replies = 0

    def begin(self, title: str, replies: int) -> None:
        self._replies = replies

    def step(self, configuration: str, question: str) -> None:
        """The next reply begins."""
        from specchat.training.job import Stage

        who = configuration.partition(":")[0]
        self._tell(Stage("measuring", self._done, self._replies, "replies", f"{who} · {question}"))
        self._done += 1


def judge(report: Report, ways: Sequence[Way]) -> Judged:
    """The quickest way, if it is quicker than the pair's default and its texts are the target's own."""
    plain, default, *others = report.runs[0].results
    measured = [_measured(PLAIN, plain), _measured(DEFAULT, default)]
    measured += [_measured(way.name, result) for way, result in zip(ways, others, strict=True)]
    able = [(one.ratio, way) for one, way in zip(measured[2:], ways, strict=True) if one.same_text]
    ratio, best = max(able, key=lambda found: found[0], default=(0.0, None))
    if best is None or ratio <= measured[1].ratio:
        return Judged(measured)
    return Judged(measured, best.name, dict(best.changes))


def as_configuration(way: Way) -> str:
    """The same as `bench --compare` takes it."""
    names = ":".join(str(way.changes[key]) for key in ("drafter", "policy", "rule", "controller"))
    rest = [f"{key}={value}" for key, value in way.changes.items() if "." in key or key in ("width", "depth", "nodes")]
    return ":".join([names, *rest])


def print_verdict(pair: str, name: str, judged: Judged) -> None:
    """The table, and a question where there is a terminal to answer on."""
    for line in table_lines(judged):
        typer.echo(line)
    typer.echo(verdict_line(judged, name, pair))
    if not judged.best:
        return
    if sys.stdin.isatty() and typer.confirm("Use it from now on?"):
        use(pair, judged.settings)
    else:
        typer.echo("to use it from now on:")
        for key, value in judged.settings.items():
            typer.echo(f"  specchat config set {key} {shlex.quote(str(value))} --pair {pair}")


def use(pair: str, settings: Mapping[str, Any]) -> None:
    """Make these settings the ones that the pair starts with."""
    from specchat.config.settings_saving import set_all_for_pair

    typer.echo(set_all_for_pair(pair, settings).line())


def _measured(name: str, result: Result) -> MeasuredWay:
    same = result.same_text is None or result.same_text.ok
    if (group := result.group()) is None:
        return MeasuredWay(name, 0.0, same_text=same)
    ratio = group.ratio
    return MeasuredWay(name, ratio.value, ratio.low, ratio.high, group.acceptance_length, same)
