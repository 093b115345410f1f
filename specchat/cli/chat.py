"""Opening the app on an engine or a recording: its terminal, its setup, and the log of an error that ended it."""

from __future__ import annotations

import dataclasses
import importlib
import os
import sys
import traceback
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import typer

from specchat.cli.listening import check_packages, own_key
from specchat.config import AppOptions, load_catalog, private_dir, starting_pair, state_dir, user_settings
from specchat.config.directories import shipped_file
from specchat.config.user_config import system_message, user_app, user_keys
from specchat.engine.client.replay import Player, Recording
from specchat.engine.client.start_engine import remove_engine_logs, start_engine
from specchat.engine.protocol.text import one_line, visible
from specchat.errors import SpecchatError, UsageError, cut
from specchat.store.database import default_path
from specchat.store.prompt_history import History
from specchat.tui.app import SpecchatApp, run_app
from specchat.tui.services.context import AppSetup
from specchat.tui.services.engine_server import parse_port
from specchat.tui.services.key_bindings import problems
from specchat.tui.services.training_runner import TrainingHere
from specchat.tui.state.races import BenchQuestion
from specchat.tui.state.stored_chat import conversation
from specchat.tui.state.training import Training
from specchat.tui.system.terminal import ExitGuard, bound_environment
from specchat.tui.text.line_filters import needs_ascii
from specchat.tui.text.theme import unknown_theme


def open_chat(
    settings: dict[str, Any],
    engine: str,
    *,
    mouse: bool = True,
    print_transcript: bool = False,
    ascii: bool = False,
    chat: str | None = "",
    serve_on: str | None = None,
    system: str = "",
    question: str = "",
) -> int:
    """The app on an engine: a child process here, or wherever `engine` starts one. Returns the exit code.

    Args:
        system: the system message of new chats: its text, or the name of a saved one.
        serve_on: the port on which other programs may ask, "" for the usual one; None: they may not.
    """
    port = None
    if serve_on is not None:  # what is wrong with it is said before the screen is taken
        port = parse_port(serve_on, "--serve", "a port from 1 to 65535")
        check_packages()
        own_key()
    message = system_message(system)
    guard = take_terminal()
    wanted = {**user_settings(), **settings}
    if not engine:
        settings = {**settings, "pair": starting_pair(settings)}
        load_catalog().pair(settings["pair"])  # a wrong name is reported before the screen is taken
    training = TrainingHere(lambda asked: _later("pair_states").estimate_training(asked), state_dir() / "training.json")
    keys, options = user_keys(problems), _options(mouse, ascii)
    sent = History(state_dir() / "prompts.jsonl", private_dir) if options.history else None
    setup = AppSetup(
        lambda wake: start_engine(engine, wanted, wake),
        pairs=lambda: _later("pair_states").pairs_elsewhere() if engine else _later("pair_states").known_pairs(),
        judge=None if engine else lambda info: _later("pair_states").judged(info),
        sizes=None if engine else lambda info: _later("pair_states").sized_by_hub(info),
        finds_models=not engine,
        demo=_demo(),
        engine_here=not engine,
        store=default_path(),
        toured=state_dir() / "toured",
        questions=shipped_questions,
        server=lambda *given: _later("serving").AppServer(*given),
        serve_on=port,
        better=None if engine else lambda name: _later("pair_states").offer_for(name, patience_s=20.0),
        training=None if engine else training,
        second_engine=lambda wake: start_engine(engine, wanted, wake, number=1),
    )
    app = SpecchatApp(
        setup,
        settings=settings,
        keys=keys,
        history=sent,
        options=options,
        chat=chat,
        system=message,
        question=question,
        guard=guard,
    )
    try:
        run_app(app, mouse=options.mouse)
    finally:
        remove_engine_logs(own=True)
    if (print_transcript or options.print_transcript) and (said := conversation(app.chat.turns)):
        typer.echo(said + "\n")
    kept = app.context.archive.stored()
    if app.context.archive.problem:
        typer.echo(f"specchat: not saved: {app.context.archive.problem}", err=True)
    elif kept is not None:
        typer.echo(f"{visible(kept[1])}\ngo on with it: specchat -r {kept[0]}")
    _say_training_stopped(app.chat.background.training)
    return _ended(app)


def _ended(app: SpecchatApp) -> int:
    """Report a crash; returns the exit code."""
    if app.crash is not None:
        typer.echo(crash_line(app.crash), err=True)
    return app.return_code or 0


def _say_training_stopped(training: Training | None) -> None:
    """How to go on with a training that ended with the app."""
    if training is not None and training.phase not in ("done", "failed"):
        typer.echo(f"the training of {visible(training.request.name)} was stopped; /train resume goes on with it")


def open_replay(file: Path, *, mouse: bool = True, ascii: bool = False) -> int:
    """The app on a recording; no model, no engine. Returns the exit code."""
    recording = Recording.read(file)
    guard = take_terminal()
    options = _options(mouse, ascii)
    setup = AppSetup(lambda wake: Player(recording, wake))
    app = SpecchatApp(setup, settings={}, keys=user_keys(problems), options=options, guard=guard)
    run_app(app, mouse=options.mouse)
    return _ended(app)


def _options(mouse: bool, ascii: bool) -> AppOptions:
    options = user_app(unknown_theme)
    plain = options.ascii or ascii or needs_ascii(os.environ)
    return dataclasses.replace(options, mouse=options.mouse and mouse, ascii=plain)


def shipped_questions() -> list[BenchQuestion]:
    """Questions of a benchmark in the app: the shipped ones without their follow-ups, category by category."""
    from specchat.bench.workloads import own_workload

    return [BenchQuestion(question.category, question.turns[0]) for question in own_workload().in_turn()]


def _demo() -> Path | None:
    """The recording that comes with specchat, offered where weights cannot be had."""
    try:
        return shipped_file("assets/demo.jsonl")
    except SpecchatError:
        return None


def _later(module: str) -> ModuleType:
    """A module of the commands that the first picture does not wait for."""
    return importlib.import_module(f"specchat.cli.{module}")


MOST_LOGS = 10
"""So many files are kept, the newest ones."""


def crash_line(error: Exception) -> str:
    """Write the traceback to a file; returns the line that names the error and the file."""
    said = one_line(f"specchat: internal error: {type(error).__name__}: {cut(str(error))}")
    written = "".join(traceback.format_exception(error))
    try:
        return f"{said}; what it was doing is in {_keep(written)}"
    except OSError as problem:
        return f"{written}\n{said}; its log could not be written: {problem.filename}: {problem.strerror}"


def _keep(text: str) -> Path:
    """Write a log, readable by the user alone; the oldest ones make room for it."""
    folder = private_dir(state_dir() / "logs")
    file = folder / f"crash-{datetime.now():%Y%m%d-%H%M%S-%f}.log"
    file.touch(mode=0o600)
    file.write_text(text, encoding="utf-8", errors="backslashreplace")
    for old in sorted(folder.glob("crash-*.log"))[:-MOST_LOGS]:
        old.unlink(missing_ok=True)
    return file


def take_terminal() -> ExitGuard:
    """Make sure there is a terminal for the app; what is returned ends the app when the terminal goes away.

    Raises:
        UsageError: input or output is not a terminal (and no browser stands in for one).
    """
    if "TEXTUAL_DRIVER" not in os.environ and not (_is_terminal(sys.__stdin__) and _is_terminal(sys.__stdout__)):
        raise UsageError("the app needs a terminal to draw in; without one there is: specchat run 'your question'")
    bound_environment(os.environ)
    guard = ExitGuard()
    guard.watch()
    return guard


def _is_terminal(stream: object) -> bool:
    try:
        return bool(stream.isatty())  # type: ignore[attr-defined]
    except (AttributeError, ValueError):  # none at all, or closed
        return False
