"""Opens files, and pipes in their place, without waiting for anybody; reads those that are named within bounds."""

from __future__ import annotations

import errno
import io
import json
import os
import stat
import zlib
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

from specchat.errors import UsageError, cut

_NotDecoded: type[Exception]
try:
    from msgspec import DecodeError as _NotDecoded
except ImportError:  # measuring a GPU needs the engine's side alone, which runs without it
    _NotDecoded = UnicodeDecodeError

UNREADABLE = (_NotDecoded, UnicodeDecodeError, RecursionError)
"""No JSON, or not of the expected type; text that is not UTF-8; brackets without end."""


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


MOST_BYTES = 256 << 20
"""Far more than the largest collections of prompts have."""

MOST_CONSTRAINT_BYTES = 1 << 20
"""Of a schema or a grammar: more than the engine takes."""

_GZIP = b"\x1f\x8b"


def read_named(file: Path, named: str = "", most: int = MOST_BYTES) -> str:
    """The text of a file, which may be gzipped, or of a pipe `<(…)`.

    Args:
        named: what errors call it, if not by its path.
        most: bytes that it may have, unpacked.

    Raises:
        UsageError: it cannot be read, is larger, or is not UTF-8.
    """
    named = named or str(file)
    try:
        with open_file_or_pipe(file) as opened:
            data = opened.read(most + 1)
        if data.startswith(_GZIP):
            import gzip

            with gzip.open(io.BytesIO(data)) as unpacked:
                data = unpacked.read(most + 1)
        if len(data) > most:
            raise UsageError(f"{named} cannot be read: it is larger than {most >> 20} MiB")
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{named} cannot be read: it is not UTF-8 in line {line}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{named} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def json_line(line: str, where: str) -> Any:
    """The value of one line of JSON.

    Args:
        where: file and line, for the error.

    Raises:
        UsageError: it is not JSON.
    """
    try:
        return json.loads(line)
    except RecursionError:
        raise UsageError(f"{where} is not JSON: it is nested too deep") from None
    except ValueError as error:  # JSONDecodeError is one, and so is a number of more digits than Python reads
        raise UsageError(f"{where} is not JSON: {cut(str(error))}") from None
