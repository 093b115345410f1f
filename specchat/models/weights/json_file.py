"""JSON files that came with a model: read within bounds, refused in one line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from specchat.config.regular_file import open_regular
from specchat.errors import DamagedWeights, WeightsError

_MOST_BYTES = 256 << 20
"""Tokenizers of the largest vocabularies have some 35 MB."""


@contextmanager
def opened_file(file: Path) -> Iterator[BinaryIO]:
    """The file, opened to be read. Pipes and devices are refused: a reader would wait for them.

    Raises:
        WeightsError: it cannot be opened, or reading fails.
    """
    try:
        with open_regular(file) as opened:
            yield opened
    except OSError as error:
        raise WeightsError(f"{file} cannot be read: {error.strerror or error}") from None


def read_object(file: Path) -> dict[str, Any]:
    """The object that the file holds.

    Raises:
        WeightsError: it cannot be read, or is not a JSON object.
    """
    return parse_object(read_whole(file), str(file))


def read_whole(file: Path) -> bytes:
    """The bytes of the file.

    Raises:
        WeightsError: it cannot be read, or is larger than any such file.
    """
    with opened_file(file) as opened:
        data = opened.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise DamagedWeights(f"{file} is larger than {_MOST_BYTES >> 20} MB")
    return data


def parse_object(data: bytes, name: str) -> dict[str, Any]:
    """The object that these bytes are the text of; `name` says what they are, for the error.

    Raises:
        WeightsError: they are not a JSON object.
    """
    try:
        said = json.loads(data.decode("utf-8"))
    except RecursionError:
        raise DamagedWeights(f"{name} cannot be read: it is nested too deep") from None
    except ValueError as error:  # UnicodeDecodeError and JSONDecodeError are of this kind
        raise DamagedWeights(f"{name} cannot be read: {error}") from None
    if not isinstance(said, dict):
        raise DamagedWeights(f"{name} is not a JSON object")
    return said
