"""Puts a file in the place of another in one step: however the program ends, one of the two is there, and whole."""

from __future__ import annotations

import os
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
            _on_the_disk(draft)
        draft.chmod(mode)
        os.replace(draft, file)
    finally:
        draft.unlink(missing_ok=True)


def _of_a_new_name(file: Path) -> Path:
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.", suffix=".new")
    os.close(handle)
    return Path(name)


def _on_the_disk(file: Path) -> None:
    with file.open("rb+") as opened:
        os.fsync(opened.fileno())
