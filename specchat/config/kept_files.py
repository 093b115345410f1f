"""Files that specchat writes: replaced in one step, locked, and small ones of state read within bounds.

However the program ends, what is there is whole.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from specchat.config.directories import private_dir
from specchat.config.file_reading import UNREADABLE


@contextmanager
def replacing(file: Path, *, mode: int = 0o600, durable: bool = True, alone: bool = False) -> Iterator[Path]:
    """An empty file to write to, which takes the place of `file` at the end; if anything fails nothing of it stays.

    Its folder is made where there is none.

    Args:
        mode: the new file's.
        durable: whether it is on the disk before it takes the place, as what cannot be made again must be.
        alone: whether nothing else writes this file meanwhile. What a killed program left unfinished is then
            written over.

    Raises:
        OSError: the disk does not take it.
    """
    if not file.parent.exists():
        private_dir(file.parent)
    draft = file.with_name(f".{file.name}.new") if alone else _of_a_new_name(file)
    try:
        draft.touch(0o600)
        yield draft
        if durable:
            put_on_disk(draft)
        draft.chmod(mode)
        os.replace(draft, file)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def creating(file: Path) -> Iterator[Path]:
    """An empty file to write to, which becomes `file` at the end; if anything fails nothing of it stays.

    Its mode is that of any new file of the user's.

    Raises:
        FileExistsError: such a file is there already, and stays as it is.
        OSError: its folder is not there, or the disk does not take it.
    """
    draft = _of_a_new_name(file)
    try:
        yield draft
        put_on_disk(draft)
        file.touch(exist_ok=False)  # takes the name: nothing but this empty file is replaced
        try:
            draft.chmod(stat.S_IMODE(file.stat().st_mode))
            os.replace(draft, file)
        except OSError:
            file.unlink(missing_ok=True)
            raise
    finally:
        draft.unlink(missing_ok=True)


UNFINISHED, _LOCK = ".unfinished-", ".lock"


@contextmanager
def unfinished(folder: Path) -> Iterator[Path]:
    """An empty private folder of the same name on the same disk; what is in it at the end is removed.

    What is written there is put in the folder's place, or moved into it, once it is whole. A lock file beside it is
    held meanwhile, by which `remove_unfinished` knows that its program is running.

    Raises:
        OSError: the disk does not take it.
    """
    if not folder.parent.exists():
        private_dir(folder.parent)
    handle, lock = tempfile.mkstemp(prefix=UNFINISHED, suffix=_LOCK, dir=folder.parent)
    os.close(handle)
    around = Path(lock.removesuffix(_LOCK))
    try:
        with locked(Path(lock), 0):
            try:
                yield private_dir(around / folder.name)
            finally:
                shutil.rmtree(around, ignore_errors=True)
    finally:
        Path(lock).unlink(missing_ok=True)


def remove_unfinished(place: Path) -> None:
    """Remove the `unfinished` folders that killed programs left in a place: those whose lock nobody holds."""
    for around in place.glob(f"{UNFINISHED}*/"):
        lock = around.with_name(around.name + _LOCK)
        with suppress(OSError):  # TimeoutError, where the lock is held, is of this kind
            with locked(lock, 0):
                shutil.rmtree(around, ignore_errors=True)
            lock.unlink()


def _of_a_new_name(file: Path) -> Path:
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.", suffix=".new")
    os.close(handle)
    return Path(name)


def put_on_disk(file: Path) -> None:
    """Wait until what was written to the file is on the disk; OSError if the disk does not take it."""
    with file.open("rb+") as opened:
        os.fsync(opened.fileno())


def put_names_on_disk(folder: Path) -> None:
    """Wait until the names of its files are on the disk, where the system can tell; OSError if it takes none."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


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


def is_running(process: int) -> bool:
    """Whether a process of this number is running, whoever's it is. Where asking would end it, it counts as running."""
    if os.name == "nt":  # there, to signal a process is to end it
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # another user's process
        return True
    return True


Kind = TypeVar("Kind")

MOST_BYTES = 1 << 20
"""Far more than such a file ever has."""


def read_small(file: Path, most: int = MOST_BYTES) -> bytes:
    """The bytes of a regular file of at most `most` bytes; b"" where there is no such file."""
    try:
        if not file.is_file():
            return b""
        with file.open("rb") as opened:
            data = opened.read(most + 1)
    except OSError:
        return b""
    return data if len(data) <= most else b""


def read_end(file: Path, most: int) -> bytes:
    """The last bytes of a file that only grows, at most so many; OSError if it cannot be read."""
    with file.open("rb") as opened:
        opened.seek(max(0, opened.seek(0, os.SEEK_END) - most))
        return opened.read(most)


def read_json(file: Path, kind: type[Kind]) -> Kind | None:
    """The file's JSON value, if the file is small and the value of this kind."""
    import msgspec  # not where a GPU is measured, which needs no file of this kind

    try:
        return msgspec.json.decode(read_small(file), type=kind)
    except UNREADABLE:
        return None


def write_whole(file: Path, data: bytes) -> None:
    """Replace the file's data in one step; its folder is made. OSError if the disk does not take it."""
    with replacing(file, durable=False) as draft:
        draft.write_bytes(data)
