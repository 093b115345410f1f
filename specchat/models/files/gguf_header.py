"""The header of a GGUF file: what the file says about itself, read in milliseconds and without torch."""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from specchat.errors import WeightsError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


class Kind(IntEnum):
    """Formats of a tensor's rows that are met by name, by the format's own numbers."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q4_K = 12
    BF16 = 30


FOUR_BIT = (Kind.Q4_0, Kind.Q4_1, Kind.Q4_K)
"""What runs in 4 bits as it lies in the file."""


@dataclass(frozen=True)
class TensorHeader:
    """Where one tensor lies, counted from the start of the data. `shape` is in torch's order, the row length last."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True)
class Header:
    """A file's metadata and tensors; `data` is the whole file, of which tensors begin at `start`."""

    metadata: dict[str, Any]
    tensors: tuple[TensorHeader, ...]
    data: mmap.mmap
    start: int

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))

    def about(self, key: str) -> Any:
        """A value that stands under the architecture's name: `context_length`; None where there is none."""
        return self.metadata.get(f"{self.architecture}.{key}")


def read_header(path: Path, lists: bool = False) -> Header:
    """The header of this file. Long lists belong to the tokenizer: they are read only if asked for (`lists`).

    Raises:
        WeightsError: no GGUF file that can be read.
    """
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return _Reader(data, lists).header(path)
    except (OSError, struct.error, UnicodeDecodeError, KeyError, ValueError) as error:
        raise WeightsError(f"{path} is not a GGUF file that can be read: {error}") from None


class _Reader:
    """Walks through the header."""

    def __init__(self, data: mmap.mmap, lists: bool) -> None:
        self._data = data
        self._lists = lists
        self._at = 0

    def header(self, path: Path) -> Header:
        magic, version = self._take("4sI")
        if magic != b"GGUF" or version not in (2, 3):
            raise WeightsError(f"{path} is not a GGUF file of version 2 or 3")
        tensors, pairs = self._take("QQ")
        metadata: dict[str, Any] = {}
        for _ in range(pairs):
            key = self._string()
            metadata[key] = self._value(self._take("I")[0])
        found = tuple(self._tensor() for _ in range(tensors))
        alignment = metadata.get("general.alignment", 32)
        return Header(metadata, found, self._data, -(-self._at // alignment) * alignment)

    def _tensor(self) -> TensorHeader:
        name = self._string()
        (dimensions,) = self._take("I")
        shape = self._take(f"{dimensions}Q")
        kind, offset = self._take("IQ")
        return TensorHeader(name, tuple(reversed(shape)), kind, offset)

    def _take(self, layout: str) -> tuple[Any, ...]:
        layout = "<" + layout
        values = struct.unpack_from(layout, self._data, self._at)
        self._at += struct.calcsize(layout)
        return values

    def _string(self) -> str:
        (length,) = self._take("Q")
        self._at += length
        return self._data[self._at - length : self._at].decode("utf-8", errors="replace")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._take(_SCALARS[kind])[0]
        of, count = self._take("IQ")
        if of == _STRING:
            return [self._string() for _ in range(count)] if self._lists else self._skip_strings(count)
        self._at += struct.calcsize("<" + _SCALARS[of]) * count
        return None

    def _skip_strings(self, count: int) -> None:
        for _ in range(count):
            (length,) = struct.unpack_from("<Q", self._data, self._at)
            self._at += 8 + length
