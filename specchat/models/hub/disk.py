"""Writing weights safely, and telling how far it is: one writer at a time, space checked first, placed in one step."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal

from specchat.config import WeightsSpec, private_dir
from specchat.config.file_reading import open_regular
from specchat.config.kept_files import locked, put_names_on_disk, put_on_disk
from specchat.errors import WeightsError
from specchat.models.hub.model_state import kind_dir

Stage = Literal["fetch", "verify"]


class Cancelled(WeightsError):
    """Fetching was stopped on request; what is complete stays, and the next fetch goes on from there."""

    exit_code = 130


@dataclass(frozen=True)
class Progress:
    """How far one item is. `total` 0 means unknown; `rate` is in bytes per second."""

    stage: Stage
    item: str
    done: int = 0
    total: int = 0
    rate: float = 0.0


OnProgress = Callable[[Progress], None]
IsCancelled = Callable[[], bool]
SILENT: OnProgress = lambda progress: None  # noqa: E731
NEVER: IsCancelled = lambda: False  # noqa: E731


@dataclass
class Meter:
    """Bytes of one item as they come in; says so at most every tenth of a second, and stops when cancelled.

    The count never goes back, although a wheel's bytes are only an estimate of its member's.
    """

    stage: Stage
    item: str
    total: int
    on_progress: OnProgress
    cancelled: IsCancelled
    _seen: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=32))
    _done: int = 0
    _last: float = 0.0

    def at(self, done: int, *, at_once: bool = False) -> None:
        """The item has this many bytes now."""
        self.stop_if_cancelled()
        self._done = max(self._done, min(done, self.total) if self.total else done)
        now = time.monotonic()
        if not at_once and now - self._last < 0.1:
            return
        self._last = now
        self._seen.append((now, self._done))
        self.on_progress(Progress(self.stage, self.item, self._done, self.total, self._rate()))

    def stop_if_cancelled(self) -> None:
        if self.cancelled():
            raise Cancelled(f"stopped at {self.item}; the next pull goes on from there")

    def _rate(self) -> float:
        (first_s, first), (last_s, last) = self._seen[0], self._seen[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else 0.0


CHUNK_BYTES = 1 << 20

_REPORT_S = 0.3
"""How often a process that waits for another one says so, and asks whether it shall end."""


@contextmanager
def sole_writer(spec: WeightsSpec, on_progress: OnProgress, cancelled: IsCancelled) -> Iterator[None]:
    """Be the only process that writes this model; wait, and say so, while another one does."""
    meter = Meter("fetch", f"{spec.name}: waiting for another specchat to finish with it", 0, on_progress, cancelled)
    lock = private_dir(kind_dir(spec)) / f"{spec.name}.lock"
    with ExitStack() as held:
        while True:
            try:
                held.enter_context(locked(lock, _REPORT_S))
                break
            except TimeoutError:
                meter.at(0, at_once=True)
        yield


def sha256_of(path: Path, item: str, on_progress: OnProgress, cancelled: IsCancelled) -> str:
    """The file's SHA-256 in hexadecimal, reporting how far it is."""
    digest = hashlib.sha256()
    done, meter = 0, Meter("verify", item, path.stat().st_size, on_progress, cancelled)
    with open_regular(path) as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            meter.at(done := done + len(chunk))
    meter.at(done, at_once=True)
    return digest.hexdigest()


def place(candidate: Path, target: Path) -> None:
    """Put a finished file where it belongs, in one step and on stable storage."""
    candidate.chmod(0o600)
    put_on_disk(candidate)
    os.replace(candidate, target)
    put_names_on_disk(target.parent)


def create_private(path: Path) -> IO[bytes]:
    """A new file for writing that its owner alone may read; what lay there before is gone."""
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def free_disk_bytes(folder: Path) -> int:
    """Free on the disk of a folder, which need not be there yet."""
    return shutil.disk_usage(next(step for step in (folder, *folder.parents) if step.exists())).free


def need_space(directory: Path, needed: int, item: str) -> None:
    """Raise WeightsError if the disk has less free than needed: what cannot be finished is not begun."""
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise no_space(directory, f"{item} needs {megabytes(needed)}, {megabytes(free)} are free")


def no_space(directory: Path, detail: str) -> WeightsError:
    return WeightsError(f"not enough space in {directory}: {detail}")


def is_full(error: OSError) -> bool:
    """Whether this is the system's way of saying that the disk, or the user's share of it, is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def megabytes(count: int) -> str:
    """`98.4 MB`."""
    return f"{count / 1e6:.1f} MB"
