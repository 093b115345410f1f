"""A training on the command line: how it is run and stopped, how far it is, and the verdict on the drafter."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from specchat.cli.flags import Output
from specchat.cli.progress import print_report, sized, stage_reporter
from specchat.cli.streams import can_ask
from specchat.config import ModelSpec
from specchat.config.directories import expanded
from specchat.config.trained_drafters import JUDGE, TrainedDrafter, whose_name
from specchat.drafters import DRAFTERS
from specchat.drafters.members import Member
from specchat.engine.protocol.training_report import (
    DEFAULT,
    PLAIN,
    Curve,
    Judged,
    MeasuredWay,
    Needed,
    Trained,
    curve_lines,
    learnt_lines,
    table_lines,
    verdict_line,
)
from specchat.errors import UsageError
from specchat.models.hub.disk import Progress
from specchat.settings import Settings
from specchat.training.limits import CHATS, SELF, fetched_start, refuse_hiding, refuse_wrong_name, trainable_target
from specchat.training.prompts import prompts_of
from specchat.training.training_request import TrainingRequest

if TYPE_CHECKING:
    from specchat.bench.report import Report, Result
    from specchat.engine.protocol.events import GuessChange
    from specchat.training.disk import Needs
    from specchat.training.job import Stage, Subject

Tell = Callable[["Stage"], None]

_QUESTIONS = 8
_TOKENS = 96
_ATTEMPTS = 3
"""Measurements that were paused are made again, so often at most: a pause would count as time of a method."""


Ways = Mapping[str, Mapping[str, Any]]
"""Ways to use a trained drafter, each by a name: settings by their own names."""


def ways_to_use(settings: Settings, trained: TrainedDrafter) -> Ways:
    """The drafter alone, in trees of its own, and merged with what the pair drafts with, in the pair's trees."""
    method = trained.method
    weights = {f"{method}.{DRAFTERS[method].weights_option}": trained.name}
    shape = {"policy": "best_first", "rule": "follow", "controller": "goodput", "nodes": 8, "depth": 4, "width": 4}
    kept = {key: getattr(settings, key) for key in shape}
    others, own = _partners(settings, method)
    merged = {**kept, "drafter": "merge", **weights, "merge.of": f"{others}+{own}"}
    return {"alone": {**shape, "drafter": method, **weights}, f"merged with {others}": merged}


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


def measure(settings: Settings, trained: TrainedDrafter, tell: Tell, clock: RunningClock) -> Judged | None:
    """Let the pair's default and the ways to use the drafter answer the same questions; None where that was paused
    each time."""
    from specchat.bench.runner import Bench, BenchPlan, BenchProgress
    from specchat.bench.workloads import own_workload
    from specchat.training.job import Stage

    done = replies = 0

    def begin(title: str, steps: int) -> None:
        nonlocal done, replies
        done, replies = 0, steps

    def step(configuration: str, question: str) -> None:
        nonlocal done
        who = configuration.partition(":")[0]
        tell(Stage("measuring", done, replies, "replies", f"{who} · {question}"))
        done += 1

    ways = ways_to_use(settings, trained)
    compare = ",".join(["auto", *map(as_configuration, ways.values())])
    workload = own_workload().first_turns().limited(_QUESTIONS)
    plan = BenchPlan(settings.but({"max_tokens": _TOKENS, "seed": 0}), workload, compare, perplexity=False)
    for _ in range(_ATTEMPTS):
        pauses = clock.pauses
        report = Bench(plan, BenchProgress(begin=begin, step=step)).run()
        if clock.pauses == pauses:
            return judge(report, ways)
    return None


def judge(report: Report, ways: Ways) -> Judged:
    """The quickest way, if it is quicker than the pair's default and its texts are the target's own."""
    plain, default, *others = report.runs[0].results
    measured = [_measured(PLAIN, plain), _measured(DEFAULT, default)]
    measured += [_measured(name, result) for name, result in zip(ways, others, strict=True)]
    best = max((one for one in measured[2:] if one.same_text), key=lambda one: one.ratio, default=None)
    if best is None or best.ratio <= measured[1].ratio:
        return Judged(measured)
    return Judged(measured, best.name, dict(ways[best.name]))


def as_configuration(changes: Mapping[str, Any]) -> str:
    """A way to use a drafter as `bench --compare` takes it."""
    names = ":".join(str(changes[key]) for key in ("drafter", "policy", "rule", "controller"))
    rest = [f"{key}={value}" for key, value in changes.items() if "." in key or key in ("width", "depth", "nodes")]
    return ":".join([names, *rest])


def print_verdict(pair: str, name: str, judged: Judged) -> None:
    """The table, and a question where there is a terminal to answer on."""
    typer.echo("\n".join([*table_lines(judged), verdict_line(judged, name, pair)]))
    if not judged.best:
        return
    if sys.stdin.isatty() and typer.confirm("Use it from now on?"):
        use(pair, judged.settings)
    else:
        typer.echo("to use it from now on:")
        for key, value in judged.settings.items():
            typer.echo(f"  specchat config set {key} {shlex.quote(str(value))} --pair {pair}")


def use(pair: str, settings: Mapping[str, Any]) -> None:
    from specchat.config.settings_saving import set_all_for_pair

    typer.echo(set_all_for_pair(pair, settings).line())


def _measured(name: str, result: Result) -> MeasuredWay:
    same = result.same_text is None or result.same_text.ok
    if (group := result.group()) is None:
        return MeasuredWay(name, 0.0, same_text=same)
    ratio = group.ratio
    return MeasuredWay(name, ratio.value, ratio.low, ratio.high, group.acceptance_length, same)


_STOPS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
_GOES_ON = getattr(signal, "SIGCONT", None)
_PARENT_DEATH = 1
"""PR_SET_PDEATHSIG of prctl(2)."""


class RunningClock:
    """Seconds while the process runs; the time from the last reading before a pause to its end does not count."""

    def __init__(self) -> None:
        self.pauses = 0
        self._paused_s = 0.0
        self._last_s = time.monotonic()

    def __call__(self) -> float:
        self._last_s = time.monotonic()
        return self._last_s - self._paused_s

    def goes_on(self) -> None:
        """The process runs again after a pause."""
        self.pauses += 1
        self._paused_s += time.monotonic() - self._last_s
        self._last_s = time.monotonic()


@contextmanager
def stoppable(clock: RunningClock, *, at_eof: bool) -> Iterator[None]:
    """Be told to stop as by Ctrl+C: by a signal to end, by a terminal that goes away, by the end of standard input.

    Args:
        clock: told of pauses.
        at_eof: whether the end of standard input is heeded. A program that starts the training holds the other end: if
            it crashes the training ends in order, even if it was paused then.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        for other in _STOPS:  # what is being written now is written to its end
            signal.signal(other, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in _STOPS}
    if _GOES_ON is not None:
        before[_GOES_ON] = signal.signal(_GOES_ON, lambda *_: clock.goes_on())
    if at_eof:
        if sys.platform == "linux":
            import ctypes

            with suppress(OSError, AttributeError):
                ctypes.CDLL(None).prctl(_PARENT_DEATH, int(signal.SIGCONT))
        threading.Thread(target=_stop_at_eof, name="stop-at-eof", daemon=True).start()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop_at_eof() -> None:
    with suppress(OSError):
        while os.read(0, 4096):
            pass
    main = threading.main_thread().ident
    if sys.platform == "win32" or main is None:
        os.kill(os.getpid(), signal.SIGTERM)
    else:  # to any thread it may be this one, which wakes first after a pause, and then the other sleeps on
        signal.pthread_kill(main, signal.SIGTERM)


@dataclass(frozen=True)
class RunOptions:
    """How a training is run.

    Args:
        threads: of the processor; 0 chooses.
        yes: whether the user's chats are read without asking.
    """

    output: Output
    threads: int
    yes: bool
    verdict: bool
    stop_at_eof: bool


def run_training(request: TrainingRequest, how: RunOptions) -> int:
    from specchat.bench.configurations import prepare_environment, settings_in_force

    settings = settings_in_force({"pair": request.pair, "threads": how.threads})
    target = trainable_target(request.pair)
    if request.prompts == CHATS and not how.yes:
        if not can_ask():
            raise UsageError("--prompts chats reads what you wrote in your chats; add --yes to allow it")
        question = "Learn from what you wrote in your chats? Texts and drafter stay on this machine."
        if not typer.confirm(question):
            raise UsageError("nothing was read and nothing trained")
    request.check()
    if (whose := whose_name(request.name)) and how.output is not Output.jsonl:
        typer.echo(
            f"note: the drafter {request.name} {whose} too, and what is trained is used in its place; to have both, "
            f"rename the folder {request.folder} when it is done",
            err=True,
        )
    prepare_environment(settings.threads)
    refuse_several_processes(settings)
    clock = RunningClock()
    with stoppable(clock, at_eof=how.stop_at_eof):
        trained = _train(request, settings, target, clock, how.output)
        judged = _measure(settings, trained, clock, how.output) if how.verdict else None
        _print_verdict(request, trained, judged, how)
    return 0


def _train(
    request: TrainingRequest, settings: Settings, target: ModelSpec, clock: RunningClock, output: Output
) -> TrainedDrafter:
    """Everything but the verdict. If it is stopped while it learns, it first says what was kept."""
    from specchat.training.job import Job

    job: Job | None = None
    try:
        with stage_reporter(clock, as_reports=output is Output.jsonl) as tell:
            start, reference = _earlier(request.start, "--from", tell), _earlier(request.reference, "--reference", tell)
            job = Job(request, _subject(settings, target, tell), tell, clock, start, reference)
            _say_needs(job.needs, output)
            trained = job.run()
    except KeyboardInterrupt:
        if job is not None and job.kept is not None:
            _say_trained(request.pair, job.kept, output, [], complete=False)
        from specchat.training.job import command

        typer.echo(f"stopped; what was done is kept. To go on: {command(request)} --resume", err=True)
        raise
    from specchat.engine.server.kept_drafters import told_changes

    _say_trained(request.pair, trained, output, told_changes(job.changed, job.token_label))
    return trained


def _measure(settings: Settings, trained: TrainedDrafter, clock: RunningClock, output: Output) -> Judged | None:
    try:
        with stage_reporter(clock, as_reports=output is Output.jsonl) as tell:
            return measure(settings, trained, tell, clock)
    except KeyboardInterrupt:
        typer.echo(f"stopped; {trained.name} is trained, and was not measured", err=True)
        raise


def _earlier(name: str, flag: str, tell: Tell) -> TrainedDrafter | None:
    """The trained drafter that a flag names, fetched where it is not here; None where it names none."""
    from specchat.training.job import Stage

    def report(progress: Progress) -> None:
        tell(Stage("loading", progress.done, progress.total, "bytes", name))

    return fetched_start(name, report, flag) if name else None


def refuse_several_processes(settings: Settings) -> None:
    """Refuse to train for a target whose weights are not all in this process."""
    from specchat.models.machine import choose_devices

    if settings.target_at:
        raise UsageError(
            f"target_at = {settings.target_at!r}: a drafter is trained where the target's weights are; run specchat "
            "train on that machine, or set target_at to nothing"
        )
    if len(choose_devices(settings.device)) > 1:
        one = settings.device.partition(":")[0]
        raise UsageError(
            f"device = {settings.device!r} shares the target out over several processes, and a drafter is trained in "
            f"one; nearest that works: device = {one!r}"
        )


def _subject(settings: Settings, target: ModelSpec, tell: Tell) -> Subject:
    """The target, loaded.

    Raises:
        UsageError: it runs through transformers, which reads no texts side by side.
    """
    from specchat.bench.configurations import load_pair
    from specchat.decoding.assemble import sampling
    from specchat.models.decoder.decoder import Decoder
    from specchat.models.decoder.pruning import PrunableFile
    from specchat.models.hub.checksum import weights_sha256
    from specchat.training.job import Stage, Subject

    alone = settings.but({"controller": "off"})
    loaded = load_pair(alone, lambda what: tell(Stage("loading", 0, 0, "", what)))
    model = loaded.target.model
    if not isinstance(model, Decoder):
        raise UsageError(
            f"{target.name} runs through transformers ({'; '.join(loaded.notes)}), and drafters are trained for models "
            "that run in specchat's own decoder"
        )
    prunable = loaded.target.prunable
    assert isinstance(prunable, PrunableFile), "our own decoder was made of a file"
    checksum = weights_sha256(target)
    return Subject(
        target.name, checksum, target.licence, model, loaded.vocabulary, sampling(settings), prunable.prepared
    )


def _say_needs(needs: Needs, output: Output) -> None:
    if output is Output.jsonl:
        print_report(Needed(needs.weights, needs.disk_bytes, needs.memory_bytes))
        return
    takes = f"takes about {sized(needs.disk_bytes)} of disk and {sized(needs.memory_bytes)} of memory"
    typer.echo(f"{needs.weights / 1e6:.1f} million numbers to learn; {takes}", err=True)


def _say_trained(
    pair: str, trained: TrainedDrafter, output: Output, changed: list[GuessChange], *, complete: bool = True
) -> None:
    """Describe the drafter's folder; JSON is printed at the end, with the verdict."""
    figures, data = trained.figures, trained.data
    tau, depths = figures["chain_tau_held_out"], figures["right_by_depth_held_out"]
    curve = Curve(list(figures["curve_tokens"]), list(figures["curve_tau"]))
    about = (trained.name, trained.method, trained.target, str(trained.folder), trained.size)
    report = Trained(*about, complete, figures["tokens_seen"], tau, list(depths), curve, changed)
    if output is Output.jsonl:
        print_report(report)
    if output is not Output.text:
        return
    shares = " ".join(f"{share:.2f}" for share in depths)
    method, option = trained.method, DRAFTERS[trained.method].weights_option
    lines = [
        f"{trained.name}: {sized(trained.size)} in {trained.folder}",
        f"learnt from {data['reply_tokens']} tokens of {data['texts']} texts, {figures['tokens_seen']} seen",
        *learnt_lines(report),
        f"right by depth there: {shares}; τ by tokens seen:",
        *curve_lines(curve),
        f"try it: specchat --pair {pair} --drafter {method} --set {method}.{option}={trained.name}",
    ]
    typer.echo("\n".join(lines))


def _print_verdict(request: TrainingRequest, trained: TrainedDrafter, judged: Judged | None, how: RunOptions) -> None:
    match how.output:
        case Output.jsonl if judged is not None:
            print_report(judged)
        case Output.json:
            said: dict[str, Any] = {"name": trained.name, "method": trained.method, "target": trained.target}
            said |= {"folder": str(trained.folder), "size": trained.size}
            said |= {"data": dict(trained.data), "figures": dict(trained.figures)}
            said |= {"verdict": None if judged is None else msgspec.to_builtins(judged)}
            sys.stdout.write(json.dumps(said, ensure_ascii=False) + "\n")
        case Output.text if judged is not None:
            print_verdict(request.pair, trained.name, judged)
    if judged is None and how.verdict:
        typer.echo("no verdict: the training was paused each time it was measured; `specchat bench` compares", err=True)


def train_judge(request: TrainingRequest, how: RunOptions) -> int:
    """Label tokens of tasks' replies, fit the judge, write it, and say how it does on unseen tasks."""
    from specchat.bench.configurations import prepare_environment, settings_in_force
    from specchat.training.job import Stage
    from specchat.training.judge import arithmetic, fitted, labelled, refuse_taken, write_judge

    given = {
        "--from": request.start, "--loss": request.loss, "--reference": request.reference, "--select": request.select,
        "--texts": request.texts, "--plain": request.plain, "--ensemble": request.ensemble != 1,
        "--depths": request.depths, "--form": request.form,
        "--resume": request.resume, "--hours": request.hours,
    }  # fmt: skip
    if refused := [flag for flag, value in given.items() if value]:
        raise UsageError(f"{refused[0]} is for drafters; a judge is fitted at once to labels that it makes itself")
    if request.prompts == CHATS:
        raise UsageError(
            "--prompts chats holds no tasks with one answer; nearest that works: --prompts self, or a file"
        )
    if request.tokens < 1:
        raise UsageError(f"--tokens {request.tokens} is nothing to learn from")
    refuse_wrong_name(request.name)
    refuse_hiding(request.name)
    refuse_taken(request.name)
    tasks: Iterator[str] = arithmetic(request.seed)
    if request.prompts != SELF:
        tasks = iter(prompts_of(expanded(request.prompts, "--prompts")))
    settings = settings_in_force({"pair": request.pair, "threads": how.threads})
    target, clock = trainable_target(request.pair), RunningClock()
    prepare_environment(settings.threads)
    refuse_several_processes(settings)
    with stoppable(clock, at_eof=how.stop_at_eof), stage_reporter(clock, as_reports=False) as tell:
        subject = _subject(settings, target, tell)

        def progress(written: int, labels: int) -> None:
            tell(Stage("replies", min(written, request.tokens), request.tokens, "tokens", f"{labels} labels"))

        labels = labelled(subject.model, subject.vocabulary, tasks, request.tokens, request.seed, progress)
        judge = fitted(labels)
    command = f"specchat train {request.pair} --drafter {JUDGE} --prompts {request.prompts}"
    command += f" --tokens {request.tokens} --name {request.name} --seed {request.seed}"
    wrong = sum(not one.right for one in labels)
    about = {
        "target": subject.name, "target_sha256": subject.checksum, "licence": subject.licence,
        "data": {"labels": len(labels), "wrong": wrong, "command": command},
    }  # fmt: skip
    trained = write_judge(request.name, judge, subject.model.layers - 1, about, len(labels))
    if how.output is Output.text:
        typer.echo(f"{trained.name}: {len(labels)} labels, {wrong} wrong; AUC {judge.auc:.2f} on unseen tasks")
        typer.echo(f"try it: specchat --pair {request.pair} --rule {JUDGE} --set {JUDGE}.weights={trained.name}")
    else:
        typer.echo(json.dumps({"name": trained.name, "method": JUDGE, "target": trained.target, **trained.figures}))
    return 0
