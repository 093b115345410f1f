"""Which specchat processes are running: each holds a file lock, which the system releases when it ends."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import filelock

from specchat.config import private_dir
from specchat.store.records import new_id

YOUNG_S = 60.0


class ProcessLock:
    """This process's lock. A process number may be reused by another process; a lock is not."""

    def __init__(self, folder: Path) -> None:
        self.name = new_id()
        self._lock = _lock(private_dir(folder), self.name)
        self._lock.acquire()

    def leave(self) -> None:
        """Release the lock: this process is ending."""
        self._lock.release()
        with suppress(OSError):
            Path(self._lock.lock_file).unlink(missing_ok=True)


def is_gone(folder: Path, name: str | None) -> bool:
    """Whether the specchat of this name has ended, however it did."""
    if name is None or not (folder / f"{name}.lock").exists():
        return True
    lock = _lock(folder, name)
    try:
        lock.acquire()
    except filelock.Timeout:
        return False
    lock.release()
    with suppress(OSError):
        Path(lock.lock_file).unlink(missing_ok=True)
    return True


def sweep(folder: Path) -> None:
    """Remove what processes left that were killed; a young file may be about to be locked."""
    for file in folder.glob("*.lock"):
        with suppress(OSError):
            if time.time() - file.stat().st_mtime > YOUNG_S:
                is_gone(folder, file.stem)


def _lock(folder: Path, name: str) -> filelock.BaseFileLock:
    return filelock.FileLock(folder / f"{name}.lock", timeout=0, mode=0o600)
