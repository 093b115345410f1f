"""Starting an engine: which command line, which log."""

from __future__ import annotations

import atexit
import functools
import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from specchat.config import load_catalog, private_dir, starting_pair, state_dir, user_settings
from specchat.config.kept_files import is_running
from specchat.engine.client.client import Engine
from specchat.errors import UsageError


def start_engine(
    command: str, settings: Mapping[str, Any], wake: Callable[[], None] | None = None, number: int = 0
) -> Engine:
    """An engine process: on this machine, or wherever the given command line starts one (no shell is involved).

    Args:
        number: of this process's engines, where it has several at once.
    """
    try:
        words = shlex.split(command) if command else None
    except ValueError as error:
        raise UsageError(f"--engine {command!r} is not a valid command line: {error}") from None
    threads = int({**user_settings(), **settings}.get("threads", 0))
    remove_engine_logs(own=False)
    return Engine(engine_log(number), words, threads=threads, wake=wake)


def check_pair(settings: Mapping[str, Any]) -> None:
    """Refuse a pair that does not exist before anything is started for it."""
    load_catalog().pair(starting_pair(settings))


def engine_log(number: int = 0) -> Path:
    """Where an engine of this process writes its log; elsewhere if nothing can be written there."""
    folder = state_dir() / "logs"
    try:
        writable = os.access(private_dir(folder), os.W_OK)
    except OSError:
        writable = False
    return (folder if writable else _spare_folder()) / f"engine-{os.getpid()}{f'-{number}' if number else ''}.log"


def remove_engine_logs(*, own: bool) -> None:
    """Remove the logs of this process's engines, or of processes that were killed and could not do it themselves."""
    for log in engine_log().parent.glob("engine-*.log"):
        number = log.stem.removeprefix("engine-").partition("-")[0]
        if number.isdecimal() and (number == str(os.getpid()) if own else not is_running(int(number))):
            with suppress(OSError):
                log.unlink()


@functools.cache
def _spare_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="specchat-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
