"""Writing weights safely: one writer at a time, space checked first, hashed, put in place in one step."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from specchat.config import WeightsSpec, private_dir
from specchat.config.file_locking import locked
from specchat.config.file_replacing import put_names_on_disk, put_on_disk
from specchat.config.regular_file import open_regular
from specchat.errors import WeightsError
from specchat.models.fetch.layout import SEAL, kind_dir
from specchat.models.fetch.progress import IsCancelled, Meter, OnProgress

CHUNK_BYTES = 1 << 20

_REPORT_S = 0.3
"""How often a process that waits for another one says so, and asks whether it shall end."""


@contextmanager
def sole_writer(spec: WeightsSpec, on_progress: OnProgress, cancelled: IsCancelled) -> Iterator[None]:
    """Be the only process that writes this model; wait, and say so, while another one does."""
    meter = Meter("fetch", f"{spec.name}: waiting for another specchat to finish with it", 0, on_progress, cancelled)
    lock = private_dir(kind_dir(spec)) / f"{spec.name}.lock"
    with ExitStack() as held:
        waiting = True
        while waiting:
            try:
                held.enter_context(locked(lock, _REPORT_S))
                waiting = False
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


def need_space(directory: Path, needed: int, item: str) -> None:
    """Refuse to begin what cannot be finished.

    Raises:
        WeightsError: the disk has less free than needed.
    """
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise no_space(directory, f"{item} needs {megabytes(needed)}, {megabytes(free)} are free")


def no_space(directory: Path, detail: str) -> WeightsError:
    """The one line for a full disk."""
    return WeightsError(f"not enough space in {directory}: {detail}")


def is_full(error: OSError) -> bool:
    """Whether this is the system's way of saying that the disk, or the user's share of it, is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def bytes_below(path: Path) -> int:
    """Bytes of a file, or of all weights and parts in a folder, however deep."""
    if path.is_file():
        return path.stat().st_size
    total = 0
    for folder, _, names in os.walk(path):  # passes over folders that another process removes meanwhile
        for name in names:
            with suppress(OSError):
                total += 0 if name.endswith(SEAL) else os.stat(os.path.join(folder, name)).st_size
    return total


def megabytes(count: int) -> str:
    """`98.4 MB`."""
    return f"{count / 1e6:.1f} MB"
