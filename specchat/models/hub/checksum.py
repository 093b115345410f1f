"""The checksum of a model's weights, by which a trained drafter knows its target. Nothing is hashed twice."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

from specchat.config import ModelFile, ModelSpec
from specchat.config.values import WEIGHT_SUFFIXES
from specchat.errors import WeightsError, os_errors_as
from specchat.models.hub import disk, model_state
from specchat.models.hub.disk import NEVER, SILENT, IsCancelled, OnProgress
from specchat.models.hub.model_state import files_of, model_in, user_path


def weights_sha256(spec: ModelSpec, on_progress: OnProgress = SILENT, cancelled: IsCancelled = NEVER) -> str:
    """SHA-256 of the model's weight file; of several, that of their sorted lines `NAME SHA-256`.

    A file is hashed where its checksum is not known and it has changed since it was hashed last. A scripted model has
    that of its name.

    Raises:
        WeightsError: the weights are not here, or cannot be read.
    """
    if spec.scripted:
        return hashlib.sha256(spec.name.encode()).hexdigest()
    with os_errors_as(WeightsError, f"the weights of {spec.name} cannot be read"):
        files = {file.name: _sha256(spec, file, path, on_progress, cancelled) for file, path in _weight_files(spec)}
    return _combined(spec, files)


def known_sha256(spec: ModelSpec) -> str | None:
    """The same, where it is known without hashing anything."""
    if spec.scripted:
        return weights_sha256(spec)
    try:
        known = {file.name: _known(spec, file, path) for file, path in _weight_files(spec)}
        found = {name: sha256 for name, sha256 in known.items() if sha256 is not None}
        return _combined(spec, found) if len(found) == len(known) else None
    except (OSError, WeightsError):
        return None


def _combined(spec: ModelSpec, files: dict[str, str]) -> str:
    if not files:
        raise WeightsError(f"the weights of {spec.name} are not complete here; run: specchat models pull {spec.name}")
    if len(files) == 1:
        return next(iter(files.values()))
    lines = "".join(f"{name} {sha256}\n" for name, sha256 in sorted(files.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def _weight_files(spec: ModelSpec) -> list[tuple[ModelFile, Path]]:
    if (own := user_path(spec)) is None:
        return [(f, model_state.folder(spec) / f.name) for f in files_of(spec) if f.name.endswith(WEIGHT_SUFFIXES)]
    place = model_in(own)
    paths = [place] if place.is_file() else sorted(place.glob("*.safetensors"))
    listed = {file.name: file for file in spec.files}
    return [(listed.get(path.name, ModelFile(path.name)), path) for path in paths]


def _known(spec: ModelSpec, file: ModelFile, path: Path) -> str | None:
    """The file's hash, as it was or as it must be before the file is used."""
    if file.sha256 is not None and user_path(spec) is None:
        return file.sha256
    return model_state.sealed_sha256(spec, file) if model_state.is_sealed(spec, file, path) else None


def _sha256(spec: ModelSpec, file: ModelFile, path: Path, on_progress: OnProgress, cancelled: IsCancelled) -> str:
    if (known := _known(spec, file, path)) is not None:
        return known
    sha256 = disk.sha256_of(path, file.name, on_progress, cancelled)
    with suppress(OSError):  # then it is hashed again the next time
        model_state.seal(spec, file, path, sha256)
    return sha256
