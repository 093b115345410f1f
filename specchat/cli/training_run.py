"""Runs a training for the command line: loads the target, shows how far it is, says what came of it."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import typer

from specchat.cli.confirm import can_ask
from specchat.cli.flags import Output
from specchat.cli.sizes import sized
from specchat.cli.training_progress import reporter
from specchat.cli.training_verdict import as_json, measure, print_verdict
from specchat.config import ModelSpec, load_catalog
from specchat.errors import UsageError

if TYPE_CHECKING:
    from specchat.cli.training_verdict import Verdict
    from specchat.config.trained_drafters import TrainedDrafter
    from specchat.settings import Settings
    from specchat.training.job import Subject
    from specchat.training.needs import Needs
    from specchat.training.training_request import TrainingRequest


def run_training(request: TrainingRequest, output: Output, *, threads: int, yes: bool, verdict: bool) -> int:
    """Train, and print what came of it; the exit code.

    Args:
        threads: of the processor; 0 chooses.
        yes: whether the user's chats are read without asking.
        verdict: whether the result is measured against the pair's default.
    """
    from specchat.bench.pair_setup import prepare_environment, settings_in_force
    from specchat.training.training_request import CHATS

    settings = settings_in_force({"pair": request.pair, "threads": threads})
    target = load_catalog().model(load_catalog().pair(request.pair).target)
    if target.scripted:
        raise UsageError(f"pair {request.pair!r} has no weights to learn from; choose a pair with a model")
    if request.prompts == CHATS and not yes:
        _ask_for_chats()
    request.check()
    prepare_environment(settings.threads)
    from specchat.training.job import Job

    with reporter() as tell:
        try:
            job = Job(request, _subject(settings, target), tell)
            _tell_needs(job.needs)
            trained = job.run()
        except KeyboardInterrupt:
            _say_how_to_go_on(request)
            raise
    measured = measure(settings, trained) if verdict else None
    _print(request.pair, trained, measured, output)
    if measured is not None and output is Output.text:
        print_verdict(request.pair, trained, measured)
    return 0


def _subject(settings: Settings, target: ModelSpec) -> Subject:
    """The target, loaded.

    Raises:
        UsageError: it runs through transformers, which reads no texts side by side.
    """
    from specchat.bench.pair_setup import load_pair
    from specchat.decoding.assemble import sampling
    from specchat.models import fetch
    from specchat.models.own.decoder import Decoder
    from specchat.training.job import Subject

    loaded = load_pair(settings, lambda what: typer.echo(what, err=True))
    model = loaded.target.model
    if not isinstance(model, Decoder):
        raise UsageError(
            f"{target.name} runs through transformers ({'; '.join(loaded.notes)}), and drafters are trained for models "
            "that run in specchat's own decoder"
        )
    checksum = fetch.weights_sha256(target)
    return Subject(target.name, checksum, target.licence, model, loaded.vocabulary, sampling(settings))


def _ask_for_chats() -> None:
    """Refuse to learn from the user's chats unless they agree.

    Raises:
        UsageError: they do not agree, or there is no terminal to ask on.
    """
    if not can_ask():
        raise UsageError("--prompts chats reads what you wrote in your chats; add --yes to allow it")
    question = "Learn from what you wrote in your chats? Texts and drafter stay on this machine."
    if not typer.confirm(question):
        raise UsageError("nothing was read and nothing trained")


def _tell_needs(needs: Needs) -> None:
    disk, memory = f"{needs.disk_bytes / 1e9:.1f} GB of disk", f"{needs.memory_bytes / 1e9:.1f} GB of memory"
    typer.echo(f"{needs.weights / 1e6:.1f} million numbers to learn; takes about {disk} and {memory}", err=True)


def _say_how_to_go_on(request: TrainingRequest) -> None:
    from specchat.training.job import command

    typer.echo(f"stopped; what was done is kept. To go on: {command(request)} --resume", err=True)


def _print(pair: str, trained: TrainedDrafter, verdict: Verdict | None, output: Output) -> None:
    figures, data = trained.figures, trained.data
    if output is Output.json:
        said: dict[str, Any] = {"name": trained.name, "method": trained.method, "target": trained.target}
        said |= {"folder": str(trained.folder), "size": trained.size, "data": dict(data), "figures": dict(figures)}
        said |= {"verdict": None if verdict is None else as_json(verdict)}
        sys.stdout.write(json.dumps(said, ensure_ascii=False) + "\n")
        return
    depths = " ".join(f"{share:.2f}" for share in figures["right_by_depth_held_out"])
    typer.echo(f"{trained.name}: {sized(trained.size)} in {trained.folder}")
    typer.echo(f"learnt from {data['reply_tokens']} tokens of {data['texts']} texts, {figures['tokens_seen']} seen")
    typer.echo(f"on texts it never learnt from: τ {figures['chain_tau_held_out']:.2f}, right by depth {depths}")
    typer.echo(
        f"try it: specchat --pair {pair} --drafter {trained.method} --set {trained.method}.weights={trained.name}"
    )
