"""The model hub's own cache: one folder for every repository, one below it for every version."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from specchat.config.state_files import read_small
from specchat.models.find.folder_walk import entries, files_below
from specchat.models.find.found_model import FoundModel

PROGRAM = "hub cache"

_REPOSITORY = re.compile(r"models--([\w.-]+?)--([\w.-]+)", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")


def hub_models(cache: Path) -> Iterator[FoundModel]:
    """The models of a cache (`~/.cache/huggingface/hub`): the version that was fetched last of each repository."""
    for entry in entries(cache):
        if (match := _REPOSITORY.fullmatch(entry.name)) and (snapshot := _snapshot(Path(entry.path))) is not None:
            yield from _in_snapshot(f"{match[1]}/{match[2]}", snapshot)


def _snapshot(repository: Path) -> Path | None:
    commit = read_small(repository / "refs" / "main", 100).decode("ascii", "replace").strip()
    if _COMMIT.fullmatch(commit) and (repository / "snapshots" / commit).is_dir():
        return repository / "snapshots" / commit
    versions = [Path(entry.path) for entry in entries(repository / "snapshots") if entry.is_dir()]
    return max(versions, key=lambda version: version.stat().st_mtime, default=None)


def _in_snapshot(repository: str, snapshot: Path) -> Iterator[FoundModel]:
    names = {entry.name for entry in entries(snapshot)}
    if {"config.json", "tokenizer.json"} <= names and any(name.endswith(".safetensors") for name in names):
        yield FoundModel(repository, snapshot, PROGRAM)
    for file in files_below(snapshot, ".gguf", deepest=2):
        yield FoundModel(f"{repository}/{file.relative_to(snapshot)}", file, PROGRAM)
