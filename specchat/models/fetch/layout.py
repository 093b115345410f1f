"""Where a model's files lie in the cache, and which of them were verified and have not changed since."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from specchat.config import COMPANION_SUFFIXES, WEIGHT_SUFFIXES, ModelFile, WeightsSpec, cache_dir
from specchat.config.state_files import read_json, write_whole

SEAL = ".verified.json"
MANIFEST = ".files.json"  # hidden: no file of a model may have this name

_LONGEST_NAME = 200
"""Bytes: what is written beside a file has a longer name than it, and disks take 255."""


@dataclass(frozen=True)
class Seal:
    """A file's hash, with the size and time of change it had then: while they stand, it is not hashed again."""

    size: int
    mtime_ns: int
    sha256: str


def folder(spec: WeightsSpec) -> Path:
    """Where this model's files lie."""
    return kind_dir(spec) / spec.name


def kind_dir(spec: WeightsSpec) -> Path:
    """The folder of all models, or of all trained drafters; asking makes nothing."""
    return cache_dir() / spec.kind


def parts_dir(spec: WeightsSpec, file: str) -> Path:
    """Where an unfinished file collects what has arrived of it."""
    return folder(spec) / f"{file}.parts"


def acceptable(name: str) -> bool:
    """Whether a file of this name may come in: weights without code, and the files next to them."""
    if not name.isprintable() or len(name.encode()) > _LONGEST_NAME:
        return False
    return "/" not in name and not name.startswith(".") and name.endswith(WEIGHT_SUFFIXES + COMPANION_SUFFIXES)


def is_sealed(spec: WeightsSpec, file: ModelFile, path: Path | None = None) -> bool:
    """Whether this file was verified and has not changed since."""
    path = path or folder(spec) / file.name
    seal = _read_seal(spec, file)
    try:
        found = path.stat()
    except OSError:
        return False
    if seal is None:
        return False
    same = (seal.size, seal.mtime_ns) == (found.st_size, found.st_mtime_ns)
    return same and file.size in (None, seal.size) and file.sha256 in (None, seal.sha256)


def seal(spec: WeightsSpec, file: ModelFile, path: Path, sha256: str) -> None:
    """Remember that this file, as it is now, has this hash."""
    found = path.stat()
    _write_json(_seal_path(spec, file), asdict(Seal(found.st_size, found.st_mtime_ns, sha256)))


def unseal(spec: WeightsSpec, file: ModelFile) -> None:
    """Forget that this file was verified."""
    _seal_path(spec, file).unlink(missing_ok=True)


def sealed_sha256(spec: WeightsSpec, file: ModelFile) -> str | None:
    """The hash this file had when it was last verified."""
    seal = _read_seal(spec, file)
    return None if seal is None else seal.sha256


def sealed_bytes(spec: WeightsSpec, file: ModelFile) -> int | None:
    """The size this file had when it was last verified."""
    seal = _read_seal(spec, file)
    return None if seal is None else seal.size


def write_manifest(spec: WeightsSpec, files: tuple[ModelFile, ...]) -> None:
    """Remember what the hub says this model consists of."""
    _write_json(folder(spec) / MANIFEST, [asdict(file) for file in files])


def read_manifest(spec: WeightsSpec) -> tuple[ModelFile, ...]:
    """What the hub said when this model was fetched; empty before that, and where it was damaged since."""
    files = read_json(folder(spec) / MANIFEST, tuple[ModelFile, ...]) or ()
    return files if all(acceptable(file.name) for file in files) else ()


def _read_seal(spec: WeightsSpec, file: ModelFile) -> Seal | None:
    return read_json(_seal_path(spec, file), Seal)


def _seal_path(spec: WeightsSpec, file: ModelFile) -> Path:
    return folder(spec) / (file.name + SEAL)


def _write_json(path: Path, value: object) -> None:
    write_whole(path, json.dumps(value).encode())
