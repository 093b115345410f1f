"""Lock files: who holds one is alone with what it stands for; the system releases it when its process ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(lock: Path, patience_s: float) -> Iterator[None]:
    """Hold a lock file. It stays behind, because removing it would let two processes hold one each.

    Raises:
        TimeoutError: another process, or another part of this one, holds it for longer than `patience_s` seconds.
        OSError: it cannot be written, or its folder is not there.
    """
    from filelock import FileLock, Timeout  # no start without a lock pays for it

    held = FileLock(lock, timeout=patience_s, mode=0o600)
    try:
        held.acquire()
    except Timeout:
        raise TimeoutError(f"another program holds {lock}") from None
    try:
        yield
    finally:
        held.release()
