"""Opens files without waiting for anybody: regular ones, and pipes that a shell put in a file's place."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

_WITHOUT_WAITING = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def open_regular(file: Path) -> BufferedReader:
    """The file, opened to be read. A pipe would keep its reader waiting, and a device has no end.

    Raises:
        OSError: it cannot be opened, or is not a regular file.
    """
    handle = os.open(file, os.O_RDONLY | _WITHOUT_WAITING)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is not a regular file", str(file))
    return os.fdopen(handle, "rb")


def open_file_or_pipe(file: Path) -> BinaryIO:
    """A file that the user named, opened to be read, or a pipe without a name: `<(…)` of a shell, or `/dev/stdin`.

    A pipe with a name is refused like a device: it may wait for ever for somebody who writes to it.

    Raises:
        OSError: it cannot be opened, or is neither.
        ValueError: a name that no file can have.
    """
    return file.open("rb") if _is_nameless_pipe(file) else open_regular(file)


def open_to_write(file: Path, mode: int) -> int:
    """The descriptor of a file, made where there is none, or of a pipe that somebody reads; as it was.

    Raises:
        OSError: it cannot be opened, or nobody reads the pipe: nothing waits until somebody does.
    """
    try:
        handle = os.open(file, os.O_CREAT | os.O_WRONLY | _WITHOUT_WAITING, mode)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise OSError(errno.ENXIO, "nobody reads this pipe", str(file)) from None
        raise
    if hasattr(os, "set_blocking"):
        os.set_blocking(handle, True)
    return handle


def is_named_pipe(file: Path) -> bool:
    """Whether it is a pipe that lies in a folder, and none that a shell put in a file's place."""
    return file.is_fifo() and not _is_nameless_pipe(file)


def _is_nameless_pipe(file: Path) -> bool:
    """Its link below /proc leads nowhere; where there is no /proc it stands in /dev/fd itself."""
    try:
        is_pipe = stat.S_ISFIFO(os.stat(file).st_mode)
    except OSError:
        return False
    real = os.path.realpath(file)
    return is_pipe and (real.startswith("/dev/fd/") or not os.path.lexists(real))
