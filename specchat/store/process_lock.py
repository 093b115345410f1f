"""Which specchat processes are running: each holds a file lock, which the system releases when it ends."""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from pathlib import Path

from specchat.config import private_dir
from specchat.config.file_locking import locked
from specchat.store.records import new_id

YOUNG_S = 60.0


class ProcessLock:
    """This process's lock. A process number may be reused by another process; a lock is not."""

    def __init__(self, folder: Path) -> None:
        self.name = new_id()
        self._file = _file(private_dir(folder), self.name)
        self._held = ExitStack()
        self._held.enter_context(locked(self._file, 0))

    def leave(self) -> None:
        """Release the lock: this process is ending."""
        self._held.close()
        with suppress(OSError):
            self._file.unlink(missing_ok=True)


def is_gone(folder: Path, name: str | None) -> bool:
    """Whether the specchat of this name has ended, however it did."""
    if name is None or not (file := _file(folder, name)).exists():
        return True
    try:
        with locked(file, 0):
            pass
    except TimeoutError:
        return False
    with suppress(OSError):
        file.unlink(missing_ok=True)
    return True


def sweep(folder: Path) -> None:
    """Remove what processes left that were killed; a young file may be about to be locked."""
    for file in folder.glob("*.lock"):
        with suppress(OSError):
            if time.time() - file.stat().st_mtime > YOUNG_S:
                is_gone(folder, file.stem)


def _file(folder: Path, name: str) -> Path:
    return folder / f"{name}.lock"
