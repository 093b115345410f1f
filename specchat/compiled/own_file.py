"""Opens a file only if no other user can have written it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
"""Opening a pipe must not block."""


class NotOwnFile(Exception):
    """A file, or a folder on the way to it, that another user owns or can write to."""


def open_own(file: Path, root: Path) -> int:
    """A descriptor of a file that belongs to this user, as do `root` and the folders between, with no write for others.

    Every step is opened below the one before and looked at once it is open, so that nothing can be exchanged between
    the look and the use. A folder may be a symbolic link: one below a folder that only this user writes to was made by
    this user, and what it leads to is looked at all the same. The file may not be one.

    Raises:
        NotOwnFile: it, or a folder, is not this user's alone.
        OSError: it cannot be opened.
    """
    folder = open_own_folder(file.parent, root)
    try:
        at = os.open(file.name, _FLAGS | os.O_NOFOLLOW, dir_fd=folder)
    finally:
        os.close(folder)
    try:
        _look_at(at, file)
        if not stat.S_ISREG(os.fstat(at).st_mode):
            raise NotOwnFile(f"{file} is not a regular file")
    except BaseException:
        os.close(at)
        raise
    return at


def open_own_folder(folder: Path, root: Path) -> int:
    """A descriptor of a folder that belongs to this user, as do `root` and the folders between.

    Raises:
        NotOwnFile: one of them is not this user's alone.
        OSError: it cannot be opened.
    """
    at, path = os.open(root, _FLAGS | os.O_DIRECTORY), root
    try:
        _look_at(at, path)
        for part in folder.relative_to(root).parts:
            path = path / part
            inner = os.open(part, _FLAGS | os.O_DIRECTORY, dir_fd=at)
            os.close(at)
            at = inner
            _look_at(at, path)
    except BaseException:
        os.close(at)
        raise
    return at


def _look_at(descriptor: int, path: Path) -> None:
    seen = os.fstat(descriptor)
    if seen.st_uid != os.geteuid():
        raise NotOwnFile(f"{path} belongs to another user")
    if seen.st_mode & _OTHERS_MAY_WRITE:
        raise NotOwnFile(f"{path} can be written by others")
