"""Puts a file in the place of another, or of none, in one step: however the program ends, what is there is whole."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specchat.config.directories import private_dir


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


@contextmanager
def unfinished(folder: Path) -> Iterator[Path]:
    """An empty private folder of the same name on the same disk; what is in it at the end is removed.

    What is written there is put in the folder's place, or moved into it, once it is whole.

    Raises:
        OSError: the disk does not take it.
    """
    private_dir(folder.parent)
    around = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=folder.parent))
    try:
        yield private_dir(around / folder.name)
    finally:
        shutil.rmtree(around, ignore_errors=True)


def _of_a_new_name(file: Path) -> Path:
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.", suffix=".new")
    os.close(handle)
    return Path(name)


def put_on_disk(file: Path) -> None:
    """Wait until what was written to the file is on the disk.

    Raises:
        OSError: the disk does not take it.
    """
    with file.open("rb+") as opened:
        os.fsync(opened.fileno())


def put_names_on_disk(folder: Path) -> None:
    """Wait until the names of its files are on the disk, where the system can tell.

    Raises:
        OSError: the disk does not take them.
    """
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
