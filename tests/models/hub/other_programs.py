"""Folders as Ollama, LM Studio and the hub's client leave them, made of small models."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from specchat.models.hub.found_models import Surroundings

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def surroundings(home: Path, **environment: str) -> Surroundings:
    """A home, and a machine with nothing else on it."""
    return Surroundings(home, environment, home / "root")


def blob(store: Path, content: bytes | Path) -> str:
    """Put this into Ollama's store; its digest."""
    data = content.read_bytes() if isinstance(content, Path) else content
    digest = hashlib.sha256(data).hexdigest()
    (store / "blobs").mkdir(parents=True, exist_ok=True)
    (store / "blobs" / f"sha256-{digest}").write_bytes(data)
    return f"sha256:{digest}"


def ollama(store: Path, name: str, model: Path, **parameters: Any) -> Path:
    """A model in Ollama's store, under its full name (`registry.ollama.ai/library/llama3.2/3b`); its blob."""
    digest = blob(store, model)
    layers = [{"mediaType": "application/vnd.ollama.image.model", "digest": digest, "size": model.stat().st_size}]
    if parameters:
        said = blob(store, json.dumps(parameters).encode())
        layers.append({"mediaType": "application/vnd.ollama.image.params", "digest": said, "size": 1})
    manifest(store, name, {"schemaVersion": 2, "layers": layers})
    return store / "blobs" / digest.replace(":", "-")


def manifest(store: Path, name: str, content: object) -> None:
    """A manifest of this name with this content."""
    file = store / "manifests" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content if isinstance(content, str) else json.dumps(content))


def hub(cache: Path, repository: str, *files: Path, ref: str = COMMIT) -> Path:
    """A repository in the hub's cache, as its client leaves it: links to blobs; the folder of its version."""
    home = cache / f"models--{repository.replace('/', '--')}"
    snapshot = home / "snapshots" / COMMIT
    for folder in (home / "refs", home / "blobs", snapshot):
        folder.mkdir(parents=True, exist_ok=True)
    (home / "refs" / "main").write_text(ref)
    for file in files:
        shutil.copyfile(file, home / "blobs" / file.name)
        (snapshot / file.name).symlink_to(home / "blobs" / file.name)
    return snapshot
