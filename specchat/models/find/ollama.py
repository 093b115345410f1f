"""Ollama's store: manifests name blobs by their hash, one of which is a GGUF file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from specchat.config.state_files import read_small
from specchat.errors import WeightsError
from specchat.models.find.folder_walk import files_below
from specchat.models.find.found_model import FoundModel
from specchat.models.inspect.recommended_sampling import sampling_of_ollama
from specchat.models.weights.config_file import parse_object

_LAYER = "application/vnd.ollama.image."
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_OWN = ("registry.ollama.ai", "library")


def ollama_models(store: Path) -> Iterator[FoundModel]:
    """The models of one store (`~/.ollama/models`): those whose blob is there."""
    manifests = store / "manifests"
    for file in files_below(manifests):
        layers = _layers(_object(file))
        if (blob := _blob(store, layers.get("model"))) is not None:
            parameters = _blob(store, layers.get("params"))
            sampling = sampling_of_ollama(_object(parameters)) if parameters else {}
            yield FoundModel(_name(file.relative_to(manifests).parts), blob, "Ollama", sampling)


def _layers(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The digest of every kind of layer; the first of each."""
    found: dict[str, Any] = {}
    layers = manifest.get("layers")
    for layer in layers if isinstance(layers, list) else ():
        if isinstance(layer, dict) and str(layer.get("mediaType", "")).startswith(_LAYER):
            found.setdefault(str(layer["mediaType"]).removeprefix(_LAYER), layer.get("digest"))
    return found


def _blob(store: Path, digest: Any) -> Path | None:
    """The file of a digest; a text that is not a digest could point anywhere and is refused."""
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        return None
    file = store / "blobs" / digest.replace(":", "-")
    return file if file.is_file() else None


def _name(parts: tuple[str, ...]) -> str:
    """`llama3.2:3b`, `someone/name:tag` or `hf.co/owner/name:Q4_K_M`, as Ollama itself shows it."""
    *path, tag = parts
    for shown in _OWN:
        path = path[1:] if path[:1] == [shown] else path
    return f"{'/'.join(path)}:{tag}"


def _object(file: Path) -> dict[str, Any]:
    try:
        return parse_object(read_small(file), str(file))
    except WeightsError:
        return {}
