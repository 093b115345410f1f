"""The header of a GGUF file: what the file says about itself, read in milliseconds and without torch.

Nothing in it is trusted. Every count is compared with the bytes there are before it is used, and every tensor lies
inside the file.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from specchat.config.regular_file import open_regular
from specchat.errors import DamagedWeights, WeightsError
from specchat.models.weights.gguf_formats import FORMATS
from specchat.models.weights.number_limits import is_name, shown

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9

_MOST_DIMENSIONS = 4
_MOST_WEIGHTS = 1 << 48
_ALIGNMENTS = tuple(1 << power for power in range(17))
_LONGEST_NAME_BYTES = 1 << 16
_MOST_ENTRIES = 1 << 20
_MOST_TEXTS = 1 << 23
"""A sparse file may claim any size: counts have limits of their own."""
_LEAST_ENTRY_BYTES = 8 + 4 + 1
_LEAST_TENSOR_BYTES = 8 + 4 + 4 + 8


class _Damaged(Exception):
    """What is wrong with a file, without its name."""


@dataclass(frozen=True)
class TensorHeader:
    """Where one tensor lies, counted from the start of the data. `shape` is in torch's order, the row length last."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes it takes in the file; its rows are whole blocks of its format."""
        return math.prod(self.shape[:-1]) * FORMATS[self.kind].row_bytes(self.shape[-1])


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
        """A value under the architecture's name, such as `context_length`; None where there is none."""
        return self.metadata.get(f"{self.architecture}.{key}")


def read_header(path: Path, lists: bool = False) -> Header:
    """The header of this file.

    Args:
        lists: whether long lists are read, which belong to the tokenizer. Then every text must be UTF-8: the libraries
            that make a tokenizer of them demand it, and two tokens could read the same. Else a broken one is mended.

    Raises:
        WeightsError: the file cannot be read as GGUF, or a tensor does not lie inside it.
    """
    try:
        with open_regular(path) as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return _Reader(data, lists).header()
    except (ValueError, _Damaged) as error:  # ValueError: an empty file cannot be mapped
        raise DamagedWeights(f"{path} is not a GGUF file that can be read: {error}") from None
    except OSError as error:
        raise WeightsError(f"{path} is not a GGUF file that can be read: {error}") from None


class _Reader:
    """Walks through the header."""

    def __init__(self, data: mmap.mmap, lists: bool) -> None:
        self._data = data
        self._size = len(data)
        self._lists = lists
        self._at = 0

    def header(self) -> Header:
        magic, version = self._take("4sI")
        if magic != b"GGUF" or version not in (2, 3):
            raise _Damaged("it does not begin like one of version 2 or 3")
        tensors, entries = self._take("QQ")
        self._need(entries, _LEAST_ENTRY_BYTES, "entries", _MOST_ENTRIES)
        self._need(tensors, _LEAST_TENSOR_BYTES, "tensors", _MOST_ENTRIES)
        metadata: dict[str, Any] = {}
        for _ in range(entries):
            key = self._name()
            metadata[key] = self._value(key, self._take("I")[0])
        found = tuple(self._tensor() for _ in range(tensors))
        alignment = metadata.get("general.alignment", 32)
        if alignment not in _ALIGNMENTS or isinstance(alignment, bool):
            raise _Damaged(f"general.alignment = {shown(alignment)} is not a power of two up to {_ALIGNMENTS[-1]}")
        if not is_name(metadata.get("general.architecture", "")):
            raise _Damaged(f"general.architecture = {shown(metadata['general.architecture'])} is not a valid name")
        start = -(-self._at // alignment) * alignment
        self._refuse_tensors(found, start, alignment)
        return Header(metadata, found, self._data, start)

    def _refuse_tensors(self, tensors: tuple[TensorHeader, ...], start: int, alignment: int) -> None:
        if len({tensor.name for tensor in tensors}) < len(tensors):
            raise _Damaged("two of its tensors have one name")
        for tensor in tensors:
            if tensor.offset % alignment:
                raise _Damaged(
                    f"tensor {shown(tensor.name)} begins at {tensor.offset}, which is not a multiple of {alignment}"
                )
            if start + tensor.offset + tensor.nbytes > self._size:
                raise _Damaged(f"tensor {shown(tensor.name)} reaches past the end")
        ordered = sorted(tensors, key=lambda tensor: tensor.offset)
        for before, after in pairwise(ordered):
            if before.offset + before.nbytes > after.offset:
                raise _Damaged(f"tensors {shown(before.name)} and {shown(after.name)} overlap")

    def _tensor(self) -> TensorHeader:
        name = self._name()
        (dimensions,) = self._take("I")
        if not 1 <= dimensions <= _MOST_DIMENSIONS:
            raise _Damaged(f"tensor {shown(name)} has {dimensions} dimensions, not 1 to {_MOST_DIMENSIONS}")
        shape = tuple(reversed(self._take(f"{dimensions}Q")))
        kind, offset = self._take("IQ")
        if kind not in FORMATS:
            raise _Damaged(f"tensor {shown(name)} has the unknown format {kind}")
        if not all(shape) or math.prod(shape) > _MOST_WEIGHTS:
            raise _Damaged(f"tensor {shown(name)} has the sizes {' × '.join(map(str, shape))}")
        if shape[-1] % FORMATS[kind].block:
            whole = f"blocks of {FORMATS[kind].block} ({FORMATS[kind].name})"
            raise _Damaged(f"tensor {shown(name)} has rows of {shape[-1]} numbers, not whole {whole}")
        return TensorHeader(name, shape, kind, offset)

    def _need(self, count: int, least_bytes: int, what: str, most: int | None = None) -> None:
        """Refuse a count that the rest of the file has no room for, or that no model has."""
        if most is not None and count > most:
            raise _Damaged(f"it claims {count} {what}, and no model has more than {most}")
        if count * least_bytes > self._size - self._at:
            raise _Damaged(f"it claims {count} {what} and has no room for them")

    def _take(self, layout: str) -> tuple[Any, ...]:
        layout = "<" + layout
        self._need(1, struct.calcsize(layout), "more value")
        values = struct.unpack_from(layout, self._data, self._at)
        self._at += struct.calcsize(layout)
        return values

    def _name(self) -> str:
        name = self._string()
        if not name or len(name) > _LONGEST_NAME_BYTES:
            raise _Damaged(f"a name has {len(name)} characters")
        return name

    def _string(self, key: str = "", number: int | None = None) -> str:
        """The next text, which belongs to this key, or to this entry of its list; without a key it is a name itself."""
        (length,) = self._take("Q")
        self._need(length, 1, "bytes of text")
        self._at += length
        data = self._data[self._at - length : self._at]
        try:
            return data.decode(errors="strict" if self._lists else "replace")
        except UnicodeDecodeError as error:
            where = f"{shown(key) if key else 'a name'}{'' if number is None else f', entry {number},'}"
            raise _Damaged(f"{where} is not UTF-8: it holds the byte 0x{data[error.start]:02x}") from None

    def _value(self, key: str, kind: int) -> Any:
        if kind == _STRING:
            return self._string(key)
        if kind in _SCALARS:
            return self._take(_SCALARS[kind])[0]
        if kind != _ARRAY:
            raise _Damaged(f"{shown(key)} has the unknown kind {kind}")
        of, count = self._take("IQ")
        if of == _STRING:
            self._need(count, 8, "texts", _MOST_TEXTS)
            return [self._string(key, number) for number in range(count)] if self._lists else self._skip_strings(count)
        if of not in _SCALARS:
            raise _Damaged(f"{shown(key)} is a list of the unknown kind {of}")
        size = struct.calcsize("<" + _SCALARS[of])
        self._need(count, size, "numbers")
        self._at += size * count
        return None

    def _skip_strings(self, count: int) -> None:
        at, last, length_at = self._at, self._size - 8, struct.Struct("<Q").unpack_from
        for _ in range(count):
            if at > last:
                raise _Damaged("a list of texts reaches past the end")
            at += 8 + length_at(self._data, at)[0]
        self._at = at
