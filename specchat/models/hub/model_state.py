"""Where a model's files lie, which of them were verified, and whether it is ready on this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from specchat.config import DrafterSpec, ModelFile, PathSource, WeightsSpec, cache_dir
from specchat.config.kept_files import read_json, write_whole
from specchat.config.values import COMPANION_SUFFIXES, WEIGHT_SUFFIXES, gguf_parts
from specchat.errors import DamagedWeights, WeightsError, os_errors_as

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
    return kind_dir(spec) / spec.name


def kind_dir(spec: WeightsSpec) -> Path:
    """The folder of all models, or of all trained drafters; asking makes nothing."""
    return cache_dir() / spec.kind


def packed_file(spec: WeightsSpec) -> Path:
    """Where layers that do not fit into memory lie as our own kernels read them."""
    return cache_dir() / "packed" / f"{spec.name}.layers"


def parts_dir(spec: WeightsSpec, file: str) -> Path:
    """Where an unfinished file collects what has arrived of it."""
    return folder(spec) / f"{file}.parts"


def acceptable(name: str) -> bool:
    """Whether a file of this name may come in: weights without code, and the files next to them."""
    if not name.isprintable() or len(name.encode()) > _LONGEST_NAME:
        return False
    return "/" not in name and not name.startswith(".") and name.endswith(WEIGHT_SUFFIXES + COMPANION_SUFFIXES)


def bytes_below(path: Path) -> int:
    """Bytes of a file, or of all weights and parts in a folder, however deep."""
    if path.is_file():
        return path.stat().st_size
    total = 0
    for folder, _, names in os.walk(path):  # passes over folders that another process removes meanwhile
        for name in names:
            with suppress(OSError):
                total += 0 if name.endswith(SEAL) else os.stat(os.path.join(folder, name)).st_size
    return total


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
    _seal_path(spec, file).unlink(missing_ok=True)


def sealed_sha256(spec: WeightsSpec, file: ModelFile) -> str | None:
    """The hash this file had when it was last verified."""
    seal = _read_seal(spec, file)
    return None if seal is None else seal.sha256


def write_manifest(spec: WeightsSpec, files: tuple[ModelFile, ...]) -> None:
    """Remember what the hub says this model consists of."""
    _write_json(folder(spec) / MANIFEST, [asdict(file) for file in files])


def read_manifest(spec: WeightsSpec) -> tuple[ModelFile, ...]:
    """The hub's list of files when this model was fetched; empty before that, and where it was damaged since."""
    files = read_json(folder(spec) / MANIFEST, tuple[ModelFile, ...]) or ()
    return files if all(acceptable(file.name) for file in files) else ()


def _read_seal(spec: WeightsSpec, file: ModelFile) -> Seal | None:
    return read_json(_seal_path(spec, file), Seal)


def _seal_path(spec: WeightsSpec, file: ModelFile) -> Path:
    return folder(spec) / (file.name + SEAL)


def _write_json(path: Path, value: object) -> None:
    write_whole(path, json.dumps(value).encode())


StateKind = Literal["ready", "unverified", "partial", "missing"]


@dataclass(frozen=True)
class State:
    """Whether a model can be loaded, how much of it is on disk, and how much it is in all (None: unknown).

    `unverified`: all of it is here in the right sizes, copied or touched since it was hashed. Fetching hashes it again.
    """

    kind: StateKind
    disk_bytes: int
    total_bytes: int | None


def state(spec: WeightsSpec) -> State:
    """Whether the model is ready, here but not verified, partly here, or missing. Reads no weights."""
    if spec.scripted:
        return State("ready", 0, 0)
    if (path := user_path(spec)) is not None:
        size = sum(bytes_below(Path(part)) for part in gguf_parts(str(path)))
        return State(_kind_of_own(spec, path), size, size)
    files = files_of(spec)
    total = sum(f.size for f in files if f.size) if files and all(f.size for f in files) else None
    size = bytes_below(folder(spec))
    if files and all(is_sealed(spec, file) for file in files):
        return State("ready", size, total)
    if files and all(_is_whole(spec, file, folder(spec) / file.name) for file in files):
        return State("unverified", size, total)
    return State("partial" if size else "missing", size, total)


def locate(spec: WeightsSpec) -> Path:
    """The GGUF file, or folder, of a model or trained drafter; WeightsError if it is not ready or has no weights."""
    if spec.scripted:
        raise WeightsError(f"model {spec.name!r} is scripted: it has no weights")
    own = user_path(spec)
    place = None if own is None else place_in(spec, own)
    if state(spec).kind != "ready":
        raise WeightsError(f"the weights of {spec.name} are not complete here; run: specchat models pull {spec.name}")
    if place is not None:
        return place
    ggufs = sorted(file.name for file in files_of(spec) if file.name.endswith(".gguf"))
    return folder(spec) / ggufs[0] if ggufs else folder(spec)


def files_of(spec: WeightsSpec) -> tuple[ModelFile, ...]:
    """The files of a model: as models.toml lists them, or as the hub listed them when it was fetched."""
    return spec.files or read_manifest(spec)


def place_in(spec: WeightsSpec, path: Path) -> Path:
    """The model or the trained drafter at a place the user named; WeightsError if it holds none."""
    if not isinstance(spec, DrafterSpec):
        return model_in(path)
    if missing := [file.name for file in spec.files if not (path / file.name).is_file()]:
        raise DamagedWeights(f"{path} holds no trained drafter: it has no {missing[0]}")
    return path


def user_path(spec: WeightsSpec) -> Path | None:
    """The first of the user's own files or folders that exists: what is here already is never fetched."""
    paths = (source.path for source in spec.sources if isinstance(source, PathSource))
    return next((path.absolute() for path in paths if os.path.exists(path)), None)  # never raises


def path_files(spec: WeightsSpec, path: Path) -> Iterator[tuple[ModelFile, Path]]:
    """Those of the user's own files that models.toml gives a checksum for."""
    for file in spec.files:
        place = path / file.name if path.is_dir() else path
        if file.sha256 and (path.is_dir() or path.name == file.name):
            yield file, place


def _kind_of_own(spec: WeightsSpec, path: Path) -> StateKind:
    try:
        place_in(spec, path)
    except WeightsError:
        return "partial"
    files = list(path_files(spec, path))
    if all(is_sealed(spec, file, place) for file, place in files):
        return "ready"
    return "unverified" if all(_is_whole(spec, file, place) for file, place in files) else "partial"


def _is_whole(spec: WeightsSpec, file: ModelFile, place: Path) -> bool:
    """Whether the file is there in its size, as that is listed or was when it was verified, if it is known at all."""
    seal = _read_seal(spec, file)
    expected = file.size if file.size is not None or seal is None else seal.size
    try:
        return place.is_file() and expected in (None, place.stat().st_size)
    except OSError:
        return False


def model_in(path: Path) -> Path:
    """The GGUF file or folder of safetensors at a place the user named; WeightsError for neither: no pickle is read."""
    if path.is_file():
        if not _is_gguf(path):
            raise DamagedWeights(f"{path} is refused: a single file must be .gguf; safetensors come as a folder")
        return path
    with os_errors_as(DamagedWeights, f"{path} cannot be read"):  # a device, a pipe, a folder of another user
        names = sorted(entry.name for entry in path.iterdir())
    ggufs = [name for name in names if name.endswith(".gguf")]
    if any(name.endswith(".safetensors") for name in names):
        if "config.json" not in names:
            adapter = "adapter_config.json" in names
            hint = ": it holds an adapter, which has to be merged into its model's weights first" if adapter else ""
            raise DamagedWeights(f"{path} has safetensors but no config.json{hint}")
        return path
    if ggufs and set(ggufs) == set(gguf_parts(ggufs[0])):
        return path / ggufs[0]
    if ggufs:
        raise DamagedWeights(f"{path} has {len(ggufs)} .gguf files; name one of them")
    raise DamagedWeights(f"{path} is refused: weights are read from .gguf and .safetensors files only, and it has none")


def _is_gguf(path: Path) -> bool:
    """Whether it is called or begins like a GGUF file: Ollama names its files by their hash alone."""
    if path.suffix == ".gguf":
        return True
    try:
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    except OSError:
        return False
