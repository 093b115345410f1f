"""Folders in the cache with what a file was converted to: known to be whole, and removed when nobody needs them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from specchat.config.file_replacing import put_on_disk
from specchat.config.running_process import is_running
from specchat.errors import WeightsError
from specchat.models.weights.json_file import read_object, read_whole

_CONTENTS = "specchat_contents.json"
"""Says of which file a folder was made, and of every file in it the hash."""

_UNFINISHED = re.compile(r"\.(\d+)\.(new|old)$")


def is_whole(folder: Path) -> bool:
    """Whether the folder holds, byte for byte, what was written to it."""
    try:
        said = read_object(folder / _CONTENTS).get("files")
        return isinstance(said, dict) and said == _hashes(folder)
    except (WeightsError, OSError):
        return False


def make_folder(folder: Path, source: Path, write: Callable[[Path], None]) -> None:
    """Make the folder of what `write` writes, in one step and on stable storage; what was there before goes.

    Leftovers of programs that were killed go too, and folders of files that are gone.

    Raises:
        OSError: the disk does not take it, or whatever `write` raises.
    """
    _remove_leftovers(folder, source)
    unfinished, aside = (folder.with_name(f"{folder.name}.{os.getpid()}.{which}") for which in ("new", "old"))
    _remove(unfinished)
    try:
        unfinished.mkdir(mode=0o700)
        write(unfinished)
        about = {"source": os.path.abspath(source), "files": _hashes(unfinished)}
        (unfinished / _CONTENTS).write_bytes(json.dumps(about).encode())
        for file in unfinished.rglob("*"):
            file.chmod(0o700 if file.is_dir() else 0o600)
            if not file.is_dir():
                put_on_disk(file)
        if is_whole(folder):  # another program was quicker
            return
        with suppress(FileNotFoundError):
            os.replace(folder, aside)
        os.replace(unfinished, folder)
    finally:
        _remove(unfinished)
        _remove(aside)


def _hashes(folder: Path) -> dict[str, str]:
    """Of every file below the folder, by its path from there, the hash of what it holds."""
    files = (file for file in folder.rglob("*") if not file.is_dir() and file != folder / _CONTENTS)
    return {file.relative_to(folder).as_posix(): _hash(file, *_stamp(file)) for file in files}


def _stamp(file: Path) -> tuple[int, int]:
    about = file.stat()
    return about.st_size, about.st_mtime_ns


@lru_cache(maxsize=64)
def _hash(file: Path, size: int, mtime_ns: int) -> str:
    """Of a file as it is now; size and time make a changed file another one. The largest take 15 ms."""
    return hashlib.blake2b(read_whole(file), digest_size=16).hexdigest()


def _remove_leftovers(folder: Path, source: Path) -> None:
    """Remove what nobody needs beside the folder that is to be made of this file."""
    for entry in folder.parent.iterdir():
        found = _UNFINISHED.search(entry.name)
        if entry == folder or (is_running(int(found[1])) if found else _is_of_another(entry, source)):
            continue
        _remove(entry)


def _is_of_another(folder: Path, source: Path) -> bool:
    """Whether the folder was made of another file that is there; of the same one it was made before it changed."""
    try:
        its = read_object(folder / _CONTENTS).get("source")
    except WeightsError:
        return False
    return isinstance(its, str) and "\0" not in its and its != os.path.abspath(source) and os.path.exists(its)


def _remove(entry: Path) -> None:
    """Remove a folder with all that it holds, or a file, as far as the system lets it go."""
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry, ignore_errors=True)
    else:
        with suppress(OSError):
            entry.unlink(missing_ok=True)
