"""Text files that the user names, such as files of prompts: read within bounds, refused in one line."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from pathlib import Path
from typing import Any

from specchat.config.regular_file import open_file_or_pipe
from specchat.errors import UsageError, cut

MOST_BYTES = 256 << 20
"""Far more than the largest collections of prompts have."""

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
    """What one line of JSON says.

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
