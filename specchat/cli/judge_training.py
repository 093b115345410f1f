"""`specchat train PAIR --drafter judge`: labels, the fit and the folder of the rule `judge`."""

from __future__ import annotations

import json
from collections.abc import Iterator

import typer

from specchat.cli.flags import Output
from specchat.cli.progress import stage_reporter
from specchat.cli.training_run import RunningClock, RunOptions, _subject, refuse_several_processes, stoppable
from specchat.config.directories import expanded
from specchat.config.trained_drafters import JUDGE
from specchat.errors import UsageError
from specchat.training.limits import CHATS, SELF, refuse_hiding, refuse_wrong_name, trainable_target
from specchat.training.prompts import prompts_of
from specchat.training.training_request import TrainingRequest


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
