"""Small files in which specchat keeps what it has learnt or measured: read within bounds, written in one step."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

import msgspec

from specchat.config.file_replacing import replacing
from specchat.config.unreadable import UNREADABLE

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
    """The last bytes of a file that only grows, at most so many.

    Raises:
        OSError: it cannot be read.
    """
    with file.open("rb") as opened:
        opened.seek(max(0, opened.seek(0, os.SEEK_END) - most))
        return opened.read(most)


def read_json(file: Path, kind: type[Kind]) -> Kind | None:
    """What the file says, if it is small and says something of this kind."""
    try:
        return msgspec.json.decode(read_small(file), type=kind)
    except UNREADABLE:
        return None


def write_whole(file: Path, data: bytes) -> None:
    """Put the data in the place of what was there, in one step; its folder is made.

    Raises:
        OSError: the disk does not take it.
    """
    with replacing(file, durable=False) as draft:
        draft.write_bytes(data)
