"""A training on the command line: loads the target, shows how far it is, says what came of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from specchat.cli.flags import Output
from specchat.cli.progress import print_report, sized, stage_reporter
from specchat.cli.streams import can_ask
from specchat.cli.training_stops import RunningClock, stoppable
from specchat.cli.training_verdict import measure, print_verdict
from specchat.config import ModelSpec
from specchat.config.trained_drafters import whose_name
from specchat.drafters import DRAFTERS
from specchat.engine.protocol.training_report import Curve, Judged, Needed, Trained, curve_lines
from specchat.errors import UsageError
from specchat.models.hub.disk import Progress
from specchat.training.limits import CHATS, fetched_start, trainable_target

if TYPE_CHECKING:
    from specchat.config.trained_drafters import TrainedDrafter
    from specchat.settings import Settings
    from specchat.training.disk import Needs
    from specchat.training.job import Stage, Subject
    from specchat.training.training_request import TrainingRequest

Tell = Callable[["Stage"], None]


@dataclass(frozen=True)
class RunOptions:
    """How a training is run.

    Args:
        threads: of the processor; 0 chooses.
        yes: whether the user's chats are read without asking.
        verdict: whether the result is measured against the pair's default.
        stop_at_eof: whether the end of standard input stops it.
    """

    output: Output
    threads: int
    yes: bool
    verdict: bool
    stop_at_eof: bool


def run_training(request: TrainingRequest, how: RunOptions) -> int:
    """Train, and print what came of it; the exit code."""
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
            _say_trained(request.pair, job.kept, output, complete=False)
        from specchat.training.job import command

        typer.echo(f"stopped; what was done is kept. To go on: {command(request)} --resume", err=True)
        raise
    _say_trained(request.pair, trained, output)
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


def _say_trained(pair: str, trained: TrainedDrafter, output: Output, *, complete: bool = True) -> None:
    """Describe the drafter's folder; JSON is printed at the end, with the verdict."""
    figures, data = trained.figures, trained.data
    tau, depths = figures["chain_tau_held_out"], figures["right_by_depth_held_out"]
    curve = Curve(list(figures["curve_tokens"]), list(figures["curve_tau"]))
    if output is Output.jsonl:
        about = (trained.name, trained.method, trained.target, str(trained.folder), trained.size)
        print_report(Trained(*about, complete, figures["tokens_seen"], tau, list(depths), curve))
    if output is not Output.text:
        return
    typer.echo(f"{trained.name}: {sized(trained.size)} in {trained.folder}")
    typer.echo(f"learnt from {data['reply_tokens']} tokens of {data['texts']} texts, {figures['tokens_seen']} seen")
    shares = " ".join(f"{share:.2f}" for share in depths)
    typer.echo(f"on texts it never learnt from: τ {tau:.2f}, right by depth {shares}")
    typer.echo("τ of chains of 4 on those texts, by tokens seen:")
    for line in curve_lines(curve):
        typer.echo(line)
    typer.echo(
        f"try it: specchat --pair {pair} --drafter {trained.method} "
        f"--set {trained.method}.{DRAFTERS[trained.method].weights_option}={trained.name}"
    )


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
