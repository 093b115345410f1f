"""Starting an engine for a command: which command line, which log."""

from __future__ import annotations

import atexit
import functools
import os
import shlex
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specchat.config import private_dir, state_dir, user_settings
from specchat.engine.near.client import Engine
from specchat.errors import UsageError


def start_engine(command: str, settings: dict[str, Any], wake: Callable[[], None] | None = None) -> Engine:
    """An engine process: on this machine, or wherever the given command line starts one (no shell is involved)."""
    try:
        words = shlex.split(command) if command else None
    except ValueError as error:
        raise UsageError(f"--engine {command!r} is no command line: {error}") from None
    threads = int({**user_settings(), **settings}.get("threads", 0))
    return Engine(engine_log(), words, threads=threads, wake=wake)


def engine_log() -> Path:
    """Where this process's engine writes what nobody asked for; elsewhere if nothing can be written there."""
    folder = state_dir() / "logs"
    try:
        writable = os.access(private_dir(folder), os.W_OK)
    except OSError:
        writable = False
    return (folder if writable else _spare_folder()) / f"engine-{os.getpid()}.log"


@functools.cache
def _spare_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="specchat-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
