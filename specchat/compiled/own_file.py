"""Opens a file only if no other user can have written it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


class NotOwnFile(Exception):
    """A file, or a folder on the way to it, that another user owns or can write to."""


def open_own(file: Path, root: Path) -> int:
    """A descriptor of a file that belongs to this user, as do `root` and the folders between, with no write for others.

    Every step is opened below the one before and looked at once it is open, so that nothing can be exchanged between
    the look and the use. Symbolic links are followed to `root` only.

    Raises:
        NotOwnFile: it, or a folder, is not this user's alone.
        OSError: it cannot be opened.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # opening a pipe must not block
    at, path = os.open(root, flags | os.O_DIRECTORY), root
    try:
        for part in file.relative_to(root).parts:
            _look_at(at, path)
            path = path / part
            inner = os.open(part, flags | os.O_NOFOLLOW, dir_fd=at)
            os.close(at)
            at = inner
        _look_at(at, path)
        if not stat.S_ISREG(os.fstat(at).st_mode):
            raise NotOwnFile(f"{path} is no file")
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
