"""JSON files that came with a model: read within bounds, refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from specchat.errors import WeightsError

_MOST_BYTES = 256 << 20
"""Tokenizers of the largest vocabularies have some 35 MB."""


def read_object(file: Path) -> dict[str, Any]:
    """The object that the file holds.

    Raises:
        WeightsError: it cannot be read, or is no JSON object.
    """
    try:
        with file.open("rb") as opened:
            data = opened.read(_MOST_BYTES + 1)
    except OSError as error:
        raise WeightsError(f"{file} cannot be read: {error.strerror or error}") from None
    if len(data) > _MOST_BYTES:
        raise WeightsError(f"{file} is larger than {_MOST_BYTES >> 20} MB")
    return parse_object(data, str(file))


def parse_object(data: bytes, name: str) -> dict[str, Any]:
    """The object that these bytes are the text of; `name` says what they are, for the error.

    Raises:
        WeightsError: they are no JSON object.
    """
    try:
        said = json.loads(data.decode("utf-8"))
    except RecursionError:
        raise WeightsError(f"{name} cannot be read: it is nested too deep") from None
    except ValueError as error:  # UnicodeDecodeError and JSONDecodeError are of this kind
        raise WeightsError(f"{name} cannot be read: {error}") from None
    if not isinstance(said, dict):
        raise WeightsError(f"{name} is not what it should be: no JSON object")
    return said
