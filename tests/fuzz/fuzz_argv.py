"""Command lines of real commands and flags with values that cannot be meant, run in this process."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NoReturn
from unittest.mock import patch

from specchat.cli import app, main
from specchat.settings import OPTIONS
from specchat.store.database import default_path
from tests.built_commands import PLACES, command_of
from tests.fuzz.chats import write_chats

ATTEMPTS = 60

VALUES = (
    "", "-", "--", "-1", "0", "1", "3.5", "1e400", "nan", "9" * 30, "9" * 5000, "x", "x" * 5000, "smol", "scripted",
    "a=b", "suffix.depth=3", "suffix.depth=x", "suffix.nosuch=3", "..=", "caf\udce9", "\x1b]52;c;x\x07", "\u202e", "🌳",
    "[bold]", "%s", "/", "/nonexistent/x", "~nosuchuser/x", "/dev/null", "true", "cuda:99", "auto", "int4", "json",
    "on", "'", '"', "a\nb", "width", "app.theme", "keys.prompt.send", "first", "fi",
)  # fmt: skip

GOOD = (["methods"], ["config", "path"], ["config", "set", "width", "4"], ["models", "list"], ["--help"])

LEFT_OUT = ("engine", "bench", "check", "doctor", "web", "pull", "add", "edit")
"""They load models, serve, connect, or start other programs; their settings are the same flags as those of `run`."""

NOT_ASKED = {"--help", "--install-completion", "--show-completion"}


def attempt(seed: int, folder: Path) -> None:
    """A command line is accepted, or refused with exit code 1 or 2 and words."""
    random = Random(seed)
    with patch.dict(os.environ, SPECCHAT_HOME=str(folder / "home")):
        write_chats(default_path())
    if seed % 10 == 0:
        words = GOOD[seed // 10 % len(GOOD)]
        code, _, errors = _run(words, folder)
        assert (code, errors) == (0, ""), (words, code, errors)
        return
    path, command = random.choice(list(_commands(command_of(app))))
    wanted = sum(one.param_type_name == "argument" for one in command.params)
    given = wanted if random.random() < 0.85 else random.randint(0, 3)
    words = [*path, *(random.choice(VALUES) for _ in range(given)), *_flags(command, random)]
    if random.random() < 0.1:
        words = [*_flags(command_of(app), random), *words]
    if random.random() < 0.1:
        random.shuffle(words)
    if not set(words) & {*LEFT_OUT, *NOT_ASKED}:
        code, output, errors = _run(words, folder)
        assert code in (0, 1, 2), (words, code, errors)
        assert code == 0 or errors or "Usage" in output, (words, code, output)
        assert len(errors) < 8000, (words, len(errors))
        assert "\x1b]" not in errors, (words, errors)


def _commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, inner in sorted(getattr(command, "commands", {}).items()):
        if name not in LEFT_OUT:
            yield from _commands(inner, (*path, name))


def _flags(command: Any, random: Random) -> list[str]:
    """Up to three flags of the command, most with a value."""
    flags = [one for one in command.params if one.param_type_name == "option" and not NOT_ASKED & {*one.opts}]
    words: list[str] = []
    for flag in random.sample(flags, min(len(flags), random.randint(0, 3))):
        name, value = random.choice(flag.opts), random.choice(VALUES)
        if flag.name in OPTIONS and random.random() < 0.3:
            value = str(OPTIONS[flag.name].default)
        words += [name] if flag.is_flag else random.choice(([name, value], [f"{name}={value}"], [name]))
    return words


def _run(words: list[str], folder: Path) -> tuple[Any, str, str]:
    """Exit code, output and errors of the program; an engine that would be started is as good as a reply."""
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.chdir(folder))
        stack.enter_context(patch.dict(os.environ, SPECCHAT_HOME=str(folder / "home"), TERM="dumb"))
        stack.enter_context(patch.object(sys, "argv", ["specchat", *words]))
        stack.enter_context(patch.object(sys, "stdin", None))
        stack.enter_context(patch.object(sys, "__stdin__", None))
        stack.enter_context(patch("specchat.cli.run.start_engine", _replied))
        for module, name in PLACES:
            stack.enter_context(patch.object(module, name, command_of))
        stack.enter_context(contextlib.redirect_stdout(output))
        stack.enter_context(contextlib.redirect_stderr(errors))
        try:
            main()
        except SystemExit as ended:
            return ended.code or 0, output.getvalue(), errors.getvalue()
    return 0, output.getvalue(), errors.getvalue()


def _replied(*_: object) -> NoReturn:
    raise SystemExit(0)
