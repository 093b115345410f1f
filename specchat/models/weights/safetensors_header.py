"""The tensors of a folder of safetensors: each with its file, sizes and format, checked. Needs no torch."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specchat.errors import DamagedWeights
from specchat.models.weights.config_file import opened_file, parse_object, read_object, shown

INDEX = "model.safetensors.index.json"
_LENGTH_BYTES = 8
_MOST_HEADER_BYTES = 100_000_000
"""The format's own bound."""

_MOST_DIMENSIONS = 8
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "C64": 64,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
}  # fmt: skip


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a file."""

    shape: tuple[int, ...]
    dtype: str


def tensors_in(folder: Path) -> dict[str, TensorEntry]:
    """Every tensor of the folder's weights by name; WeightsError: unreadable, or an index and its files disagree."""
    found: dict[str, TensorEntry] = {}
    for file, wanted in _files(folder).items():
        entries = read_entries(folder / file)
        if wanted is not None and (missing := wanted - entries.keys()):
            raise DamagedWeights(f"{folder / INDEX}: tensor {shown(min(missing))} is not in {file}")
        if twice := found.keys() & entries.keys():
            raise DamagedWeights(f"{folder / file}: tensor {shown(min(twice))} is in another file too")
        found |= entries
    return found


def weight_files(folder: Path) -> list[Path]:
    """The files that hold the folder's weights: those that an index names, or else all.

    Raises:
        WeightsError: an index that cannot be read, or that names what is not there.
    """
    return [folder / file for file in _files(folder)]


def read_entries(file: Path) -> dict[str, TensorEntry]:
    """The tensors of one file by name, inside it one behind the other; WeightsError if it is no safetensors."""
    with opened_file(file) as opened:
        size = os.fstat(opened.fileno()).st_size
        length = int.from_bytes(opened.read(_LENGTH_BYTES), "little")
        if not 2 <= length <= min(size - _LENGTH_BYTES, _MOST_HEADER_BYTES):
            raise DamagedWeights(f"{file} is not a safetensors file: its header would have {length} bytes")
        said = parse_object(opened.read(length), str(file))
    said.pop("__metadata__", None)
    spans = {name: _span(entry) for name, entry in said.items()}
    end = 0
    for name, span in sorted(spans.items(), key=lambda pair: pair[1] or (-1, -1)):
        if span is None or span[0] != end:
            raise DamagedWeights(f"{file}: tensor {shown(name)} is {shown(said[name])}")
        end = span[1]
    if end != size - _LENGTH_BYTES - length:
        raise DamagedWeights(f"{file} has {size - _LENGTH_BYTES - length} bytes of weights, its header says {end}")
    return {name: TensorEntry(tuple(entry["shape"]), entry["dtype"]) for name, entry in said.items()}


def _span(entry: Any) -> tuple[int, int] | None:
    """Where an entry's bytes begin and end; None for one that means nothing."""
    if not isinstance(entry, dict) or not isinstance(entry.get("dtype"), str) or entry["dtype"] not in _BITS:
        return None
    shape, span = _counts(entry.get("shape")), _counts(entry.get("data_offsets"))
    if shape is None or span is None or len(span) != 2:
        return None
    begin, end = span
    return (begin, end) if 8 * (end - begin) == math.prod(shape) * _BITS[entry["dtype"]] else None


def _counts(values: Any) -> list[int] | None:
    """A short list of counts, or None for anything else."""
    if not isinstance(values, list) or len(values) > _MOST_DIMENSIONS:
        return None
    return values if all(type(value) is int and 0 <= value < 1 << 62 for value in values) else None


def _files(folder: Path) -> dict[str, set[str] | None]:
    """Each file of weights, with the tensors that an index expects in it; None where there is no index."""
    if not (folder / INDEX).is_file():
        return {file.name: None for file in sorted(folder.glob("*.safetensors"))}
    places = read_object(folder / INDEX).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise DamagedWeights(f"{folder / INDEX} has no weight_map")
    files: dict[str, set[str] | None] = {}
    for tensor, file in places.items():
        if not isinstance(file, str) or not file.endswith(".safetensors") or "/" in file or "\\" in file:
            raise DamagedWeights(
                f"{folder / INDEX}: {shown(tensor)} is in {shown(file)}, which is not a file of this folder"
            )
        if file not in files and not os.path.isfile(folder / file):  # never raises
            raise DamagedWeights(f"{folder / INDEX} names {shown(file)}, which is not there")
        wanted = files.setdefault(file, set())
        assert wanted is not None, "an index says of every file what is in it"
        wanted.add(tensor)
    return files
