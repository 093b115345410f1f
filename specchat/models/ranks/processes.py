"""Processes for the other ranks: started on this machine, or met where they were started from elsewhere."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch.distributed as dist

from specchat.errors import RanksLost
from specchat.models.ranks.group import PATIENCE_S, Group
from specchat.models.ranks.leading import Ranks

STARTING_S = 180.0
"""How long the other processes may take until they are there: each imports torch."""

_POLL_S = 0.02
_ENDING_S = 2.0


def start_here(devices: Sequence[str], threads: int, cancelled: Callable[[], bool] = lambda: False) -> Ranks:
    """Start a process on this machine for every device but the first, which is ours.

    They find us by a file that this user alone can read, and are ended when we end.

    Args:
        threads: of each process.

    Raises:
        RanksLost: a process ended before it was there, or is not there in time.
    """
    folder = Path(tempfile.mkdtemp(prefix="specchat-ranks-"))
    size = len(devices)
    command = [sys.executable, "-m", "specchat.models.rank_process", str(folder), str(size), str(PATIENCE_S)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    processes = [
        subprocess.Popen([*command, str(rank)], stdin=subprocess.PIPE, stdout=2, env=environment)
        for rank in range(1, size)
    ]
    store = file_store(folder, size)

    def end() -> None:
        for process in processes:
            assert process.stdin is not None, "it was started with a pipe"
            with suppress(OSError):
                process.stdin.close()  # which it waits for
        until = time.monotonic() + _ENDING_S
        for process in processes:
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(folder, ignore_errors=True)

    def death(wait_s: float = 1.0) -> str:
        until = time.monotonic() + wait_s
        while True:
            for rank, process in enumerate(processes, 1):
                if process.poll() is not None:
                    return f"rank {rank} (process {process.pid}) {_how(process.returncode)}{_last_words(folder, rank)}"
            if time.monotonic() >= until:
                return ""
            time.sleep(_POLL_S)

    try:
        until = time.monotonic() + STARTING_S
        while not store.check([there(rank) for rank in range(1, size)]):
            if told := death(0):
                raise RanksLost(told)
            if cancelled():
                raise RanksLost("stopped before all ranks were there")
            if time.monotonic() > until:
                raise RanksLost(f"not all ranks were there after {STARTING_S:.0f} s")
            time.sleep(_POLL_S)
        group = Group(store, 0, size)
        return Ranks(group, devices, end, death, [process.pid for process in processes])
    except BaseException:
        end()
        raise


def file_store(folder: Path, size: int) -> Any:
    """Where ranks on one machine find each other."""
    return dist.FileStore(str(folder / "store"), size)  # type: ignore[attr-defined]


def there(rank: int) -> str:
    """The key by which a rank says that it is there."""
    return f"there-{rank}"


def last_words_file(folder: Path, rank: int) -> Path:
    """Where a rank writes why it ends."""
    return folder / f"error-{rank}"


def _last_words(folder: Path, rank: int) -> str:
    try:
        return f": {last_words_file(folder, rank).read_text(encoding='utf-8', errors='replace')[:500]}"
    except OSError:
        return ""


def _how(returncode: int) -> str:
    if returncode >= 0:
        return f"has ended (exit code {returncode})"
    try:
        return f"was ended by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"was ended by signal {-returncode}"
