"""The header of a GGUF file: what the file says about itself, read in milliseconds and without torch.

Nothing in it is trusted. Every count is compared with the bytes there are before it is used, and every tensor lies
inside the file.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from specchat.config.file_reading import open_regular
from specchat.config.values import gguf_parts
from specchat.errors import DamagedWeights, WeightsError
from specchat.models.weights.config_file import GGUF_NAMES, LIMITS, is_name, shown, wrong_number


class Kind(IntEnum):
    """Formats of a tensor's rows that are met by name, by the format's own numbers."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    IQ4_NL = 20
    IQ4_XS = 23
    BF16 = 30


FOUR_BIT = (Kind.Q4_0, Kind.Q4_1, Kind.Q4_K)
"""Formats whose 4-bit numbers are used without conversion."""

KEPT = (*FOUR_BIT, Kind.Q5_0, Kind.Q5_1, Kind.Q5_K, Kind.Q6_K, Kind.Q8_0, Kind.IQ4_NL, Kind.IQ4_XS)
"""Formats whose bits a CUDA device can keep."""


@dataclass(frozen=True)
class Format:
    """One format. `holds_weights`: whether its rows can be turned into floating point numbers."""

    name: str
    block: int
    block_bytes: int
    holds_weights: bool = True

    def row_bytes(self, length: int) -> int:
        """Bytes of a row of so many numbers, which must be whole blocks."""
        return length // self.block * self.block_bytes


FORMATS = {
    0: Format("F32", 1, 4),
    1: Format("F16", 1, 2),
    2: Format("Q4_0", 32, 18),
    3: Format("Q4_1", 32, 20),
    6: Format("Q5_0", 32, 22),
    7: Format("Q5_1", 32, 24),
    8: Format("Q8_0", 32, 34),
    9: Format("Q8_1", 32, 40, holds_weights=False),
    10: Format("Q2_K", 256, 84),
    11: Format("Q3_K", 256, 110),
    12: Format("Q4_K", 256, 144),
    13: Format("Q5_K", 256, 176),
    14: Format("Q6_K", 256, 210),
    15: Format("Q8_K", 256, 292, holds_weights=False),
    16: Format("IQ2_XXS", 256, 66),
    17: Format("IQ2_XS", 256, 74),
    18: Format("IQ3_XXS", 256, 98),
    19: Format("IQ1_S", 256, 50),
    20: Format("IQ4_NL", 32, 18),
    21: Format("IQ3_S", 256, 110),
    22: Format("IQ2_S", 256, 82),
    23: Format("IQ4_XS", 256, 136),
    24: Format("I8", 1, 1, holds_weights=False),
    25: Format("I16", 1, 2, holds_weights=False),
    26: Format("I32", 1, 4, holds_weights=False),
    27: Format("I64", 1, 8, holds_weights=False),
    28: Format("F64", 1, 8, holds_weights=False),
    29: Format("IQ1_M", 256, 56),
    30: Format("BF16", 1, 2),
    34: Format("TQ1_0", 256, 54),
    35: Format("TQ2_0", 256, 66),
    39: Format("MXFP4", 32, 17),
    40: Format("NVFP4", 64, 36),
}
"""By the format's own number."""


_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_LENGTH = struct.Struct("<Q")

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
    """A complaint about a file, without its name."""


@dataclass(frozen=True)
class TensorHeader:
    """Where one tensor lies: at which byte after the start of the data of which part of the model, counted from 0.
    `shape` is in torch's order, the row length last.
    """

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int
    part: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes it takes in the file; its rows are whole blocks of its format."""
        return math.prod(self.shape[:-1]) * FORMATS[self.kind].row_bytes(self.shape[-1])


@dataclass(frozen=True)
class Part:
    """A file of a model, where its tensors' data begins, and the size and time of change that it had when read."""

    path: Path
    start: int
    stamp: tuple[int, int]


@dataclass(frozen=True)
class GgufHeader:
    """A model's metadata and tensors. A file is parsed once for as long as it stays as it is.

    Args:
        metadata: long lists are None, unless they were asked for.
        parts: the files that hold the tensors: one, or all of a model that was split.
        texts: where each list of texts lies in the file, and how many it holds.
        numbers: how many each list of numbers holds.
        broken: the first name or text that is not UTF-8, as an error says it; empty where all are.
    """

    metadata: dict[str, Any]
    tensors: tuple[TensorHeader, ...]
    parts: tuple[Part, ...]
    texts: dict[str, tuple[int, int]] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    broken: str = ""

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))

    def about(self, key: str) -> Any:
        """A value under the architecture's name, such as `context_length`; None where there is none."""
        return self.metadata.get(f"{self.architecture}.{key}")

    def said(self, key: str) -> str:
        """The file's value of a key, as an error line shows it."""
        if key in self.texts:
            return f"a list of {self.texts[key][1]} texts"
        if key in self.numbers:
            return f"a list of {self.numbers[key]} numbers"
        return shown(self.metadata[key]) if key in self.metadata else "missing"


def read_header(path: Path, lists: bool = False) -> GgufHeader:
    """The header of this file, with the tensors of the files beside it where it is the first of a model that was split.

    Args:
        lists: whether lists of texts are read, which belong to the tokenizer. Then every text must be UTF-8: the
            libraries that make a tokenizer of them demand it, and two tokens could read the same. Else a broken one is
            mended.

    Raises:
        WeightsError: a file cannot be read as GGUF, a tensor does not lie inside it, or a part is missing.
    """
    header = _read(path)
    with _naming(path):
        names = _names_of_parts(path, header)
        if lists:
            if header.broken:
                raise _Damaged(header.broken)
            with _mapped(header.parts[0]) as data:
                texts = {key: _texts(data, key, *place) for key, place in header.texts.items()}
            header = replace(header, metadata=header.metadata | texts)
    return _joined(header, [_read(part) for part in names], path) if names else header


def _read(path: Path) -> GgufHeader:
    with _naming(path):
        about = path.stat()
        return _parsed(path, (about.st_size, about.st_mtime_ns))


_NUMBER, _COUNT, _TENSORS = "split.no", "split.count", "split.tensors.count"


def _names_of_parts(path: Path, header: GgufHeader) -> list[Path]:
    """The other files of a model that was split, whose first this one has to be."""
    count = header.metadata.get(_COUNT, 1)
    if count in (0, 1) and not isinstance(count, bool):
        return []
    if (number := header.metadata.get(_NUMBER, 0)) != 0:
        raise _Damaged(f"it is number {shown(number)} of the files of its model, counted from 0; name the first")
    names = gguf_parts(path.name)
    if len(names) != count:
        raise _Damaged(f"{_COUNT} = {shown(count)}, and its name does not say so: x-00001-of-00003.gguf would, for 3")
    return [path.with_name(name) for name in names[1:]]


def _joined(first: GgufHeader, others: list[GgufHeader], path: Path) -> GgufHeader:
    tensors = first.tensors
    with _naming(path):
        for number, other in enumerate(others, 1):
            said = (other.metadata.get(_NUMBER), other.metadata.get(_COUNT))
            if said != (number, len(others) + 1):
                raise _Damaged(f"{other.parts[0].path.name} is not its part {number + 1} of {len(others) + 1}")
            tensors += tuple(replace(tensor, part=number) for tensor in other.tensors)
        if len({tensor.name for tensor in tensors}) < len(tensors):
            raise _Damaged("two tensors of its parts have one name")
        if first.metadata.get(_TENSORS) not in (None, len(tensors)):
            raise _Damaged(f"{_TENSORS} = {shown(first.metadata[_TENSORS])}, and its parts hold {len(tensors)}")
    return replace(first, tensors=tensors, parts=first.parts + tuple(other.parts[0] for other in others))


def map_parts(header: GgufHeader) -> list[mmap.mmap]:
    """The whole files that the header is of, mapped; WeightsError if one cannot be read, or has changed since."""
    mapped = []
    for part in header.parts:
        with _naming(part.path):
            mapped.append(_mapped(part))
    return mapped


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, _Damaged) as error:  # ValueError: an empty file cannot be mapped
        raise DamagedWeights(f"{path} is not a GGUF file that can be read: {error}") from None
    except OSError as error:
        raise WeightsError(f"{path} is not a GGUF file that can be read: {error}") from None


def _mapped(part: Part) -> mmap.mmap:
    with open_regular(part.path) as file:
        about = os.fstat(file.fileno())
        if (about.st_size, about.st_mtime_ns) != part.stamp:
            raise _Damaged("it is being changed")
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


@lru_cache(maxsize=64)
def _parsed(path: Path, stamp: tuple[int, int]) -> GgufHeader:
    """The header of one file as it is now; size and time make a changed file another one."""
    with _mapped(Part(path, 0, stamp)) as data:
        return HeaderReader(data).header(path, stamp)


def _texts(data: mmap.mmap, key: str, at: int, count: int) -> list[str]:
    """A list of texts, which lies inside the file."""
    found = []
    for number in range(count):
        (length,) = _LENGTH.unpack_from(data, at)
        text = data[at + _LENGTH.size : at + _LENGTH.size + length]
        try:
            found.append(text.decode())
        except UnicodeDecodeError as error:
            raise _Damaged(_not_utf8(f"{shown(key)}, entry {number},", text, error)) from None
        at += _LENGTH.size + length
    return found


def _not_utf8(where: str, text: bytes, error: UnicodeDecodeError) -> str:
    return f"{where} is not UTF-8: it holds the byte 0x{text[error.start]:02x}"


_EACH_LAYER = ("attention.head_count", "attention.head_count_kv", "feed_forward_length")
"""Numbers that a header may list layer by layer."""

_ONE_NUMBER = (
    *(name for name in GGUF_NAMES if name not in _EACH_LAYER), "rope.scaling.type", "rope.scaling.factor",
    "rope.scaling.original_context_length", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
    "rope.scaling.attn_factor", "rope.scaling.yarn_log_multiplier",
)  # fmt: skip


def _refuse_lists(header: GgufHeader) -> None:
    """Refuse a list where one value is read: a list is not kept, and the value would count as left out."""
    for key in (f"{header.architecture}.{name}" for name in _ONE_NUMBER):
        if key in header.texts or key in header.numbers:
            raise _Damaged(f"{key} = {header.said(key)}, and one value is read there")


class HeaderReader:
    """Walks through the header."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._size = len(data)
        self._at = 0
        self._texts: dict[str, tuple[int, int]] = {}
        self._numbers: dict[str, int] = {}
        self._broken = ""

    def header(self, path: Path, stamp: tuple[int, int]) -> GgufHeader:
        magic, version = self._take("4sI")
        if magic != b"GGUF" or version not in (2, 3):
            raise _Damaged("it does not begin like one of version 2 or 3")
        tensors, entries = self._take("QQ")
        self._need(entries, _LEAST_ENTRY_BYTES, "entries", _MOST_ENTRIES)
        self._need(tensors, _LEAST_TENSOR_BYTES, "tensors", _MOST_ENTRIES)
        metadata: dict[str, Any] = {}
        for _ in range(entries):
            key = self._name()
            self._texts.pop(key, None)
            self._numbers.pop(key, None)
            metadata[key] = self._value(key, self._take("I")[0])
        found = tuple(self._tensor() for _ in range(tensors))
        alignment = metadata.get("general.alignment", 32)
        if alignment not in _ALIGNMENTS or isinstance(alignment, bool):
            raise _Damaged(f"general.alignment = {shown(alignment)} is not a power of two up to {_ALIGNMENTS[-1]}")
        if not is_name(metadata.get("general.architecture", "")):
            raise _Damaged(f"general.architecture = {shown(metadata['general.architecture'])} is not a valid name")
        start = -(-self._at // alignment) * alignment
        self._refuse_tensors(found, start, alignment)
        parts = (Part(path, start, stamp),)
        header = GgufHeader(metadata, found, parts, self._texts, self._numbers, self._broken)
        _refuse_lists(header)
        return header

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

    def _string(self, key: str = "") -> str:
        """The next text, which belongs to this key; without a key it is a name itself."""
        (length,) = self._take("Q")
        self._need(length, 1, "bytes of text")
        self._at += length
        data = self._data[self._at - length : self._at]
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            self._broken = self._broken or _not_utf8(shown(key) if key else "a name", data, error)
            return data.decode(errors="replace")

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
            self._texts[key] = (self._at, count)
            return self._skip_strings(count)
        if of not in _SCALARS:
            raise _Damaged(f"{shown(key)} is a list of the unknown kind {of}")
        size = struct.calcsize("<" + _SCALARS[of])
        self._need(count, size, "numbers")
        self._numbers[key] = count
        self._at += size * count
        return None

    def _skip_strings(self, count: int) -> None:
        at, last, length_at = self._at, self._size - _LENGTH.size, _LENGTH.unpack_from
        for _ in range(count):
            if at > last:
                raise _Damaged("a list of texts reaches past the end")
            at += _LENGTH.size + length_at(self._data, at)[0]
        if at > self._size:
            raise _Damaged("a list of texts reaches past the end")
        self._at = at


FACTORS = "rope_freqs.weight"
"""Llama 3's rescaling, as one divisor for each pair of values."""

_OTHER_FACTORS = ("rope_factors_long.weight", "rope_factors_short.weight")


@dataclass(frozen=True)
class RotationScaling:
    """The divisors of the angles per position.

    Args:
        linear: by this everywhere that attention reaches the whole text.
        factors: whether there is a tensor of divisors besides (`FACTORS`).
        yarn: YaRN's numbers, by the names of a transformers configuration; empty for another rotation.
        refusal: why it cannot be computed, empty where it can.
    """

    linear: float = 1.0
    factors: bool = False
    yarn: Mapping[str, Any] = field(default_factory=dict)
    refusal: str = ""

    @property
    def changes(self) -> bool:
        """Whether anything is divided at all."""
        return self.factors or bool(self.yarn) or self.linear != 1.0


def rotation_scaling(header: GgufHeader) -> RotationScaling:
    """The scaling by a header: `rope.scaling.type` is linear where it is left out, as in llama.cpp."""
    kind: Any = header.about("rope.scaling.type") or "linear"
    factor: Any = header.about("rope.scaling.factor") or 1.0
    names = {tensor.name for tensor in header.tensors}
    if not LIMITS["factor"].accepts(factor):
        return RotationScaling(refusal=f"says rope.scaling.factor = {shown(factor)}, which is not {LIMITS['factor']}")
    if kind not in ("linear", "none", "yarn"):
        return RotationScaling(refusal=f"says rope.scaling.type = {shown(kind)}; linear, yarn and none are known")
    if found := [name for name in _OTHER_FACTORS if name in names]:
        return RotationScaling(refusal=f"rotates by {found[0]}, which depends on the length of the text")
    if kind == "yarn":
        return _yarn(header, float(factor), FACTORS in names)
    return RotationScaling(1.0 if kind == "none" else float(factor), FACTORS in names)


def _yarn(header: GgufHeader, factor: float, factors: bool) -> RotationScaling:
    """YaRN as llama.cpp reads it: `attn_factor` multiplies the scale of rotated values that the factor gives."""
    numbers = {
        "factor": factor,
        "original_max_position_embeddings": header.about("rope.scaling.original_context_length"),
        "beta_fast": header.about("rope.scaling.yarn_beta_fast") or 32.0,
        "beta_slow": header.about("rope.scaling.yarn_beta_slow") or 1.0,
        "attention_factor": header.about("rope.scaling.attn_factor") or 1.0,
        "mscale_all_dim": header.about("rope.scaling.yarn_log_multiplier") or None,
    }
    if wrong := wrong_number(numbers):
        return RotationScaling(refusal=f"says of its rotation by YaRN that {wrong}")
    told = {key: value for key, value in numbers.items() if value is not None}
    growth = 0.1 * math.log(max(factor, 1.0))
    told["attention_factor"] *= (1.0 + growth) / (1.0 + told.pop("mscale_all_dim", 0.0) * growth)
    return RotationScaling(factors=factors, yarn={"rope_type": "yarn", **told})
