"""The mirrors the user chose: package indexes that carry files of models."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, Literal

from specchat.config.directories import config_dir, expanded
from specchat.config.tables import accept_checksum, accept_file_name, index_source
from specchat.config.toml_checks import TableLocation
from specchat.config.toml_file import parse_if_there
from specchat.config.values import Mirror, ModelFile, ModelSpec
from specchat.errors import ConfigError, short


def load_mirrors() -> tuple[Mirror, ...]:
    """The mirrors the user chose: the file SPECCHAT_MIRRORS names, or mirrors.toml beside config.toml, or none."""
    return tuple(_mirror(place, table) for place, table in mirror_tables("file"))


def mirror_tables(kind: Literal["file", "prompts"]) -> list[tuple[TableLocation, dict[str, Any]]]:
    """The tables of that file with this name, each with its place.

    Raises:
        ConfigError: it cannot be read, or holds anything else.
    """
    named = os.environ.get("SPECCHAT_MIRRORS")
    file = expanded(named) if named else config_dir() / "mirrors.toml"
    if (found := parse_if_there(file)) is None:
        if named:
            raise ConfigError(f"SPECCHAT_MIRRORS names {file}, which is not a file")
        return []
    place, data = found
    tables = place.read(data, {"file": list, "prompts": list})
    entries = enumerate(tables.get(kind, ()))
    return [(place.inside(kind, index), place.table_at(kind, entry)) for index, entry in entries]


def with_mirrors(models: Mapping[str, ModelSpec], mirrors: tuple[Mirror, ...]) -> dict[str, ModelSpec]:
    """The models, each file that a mirror carries reachable there too, after every other source."""
    widened = dict(models)
    for mirror in mirrors:
        for name, model in widened.items():
            if any(file.name == mirror.file.name for file in model.files):
                widened[name] = _with_mirror(model, mirror)
    return widened


def _with_mirror(model: ModelSpec, mirror: Mirror) -> ModelSpec:
    files = tuple(_agreed(model, f, mirror) if f.name == mirror.file.name else f for f in model.files)
    sources = model.sources if mirror.source in model.sources else (*model.sources, mirror.source)
    return dataclasses.replace(model, files=files, sources=sources)


def _agreed(model: ModelSpec, own: ModelFile, mirror: Mirror) -> ModelFile:
    for key in ("size", "sha256"):
        ours, theirs = getattr(own, key), getattr(mirror.file, key)
        if ours is not None and ours != theirs:
            raise ConfigError(
                f"{mirror.said_by} has {key} = {short(theirs)}, but model {model.name!r} expects {ours!r}"
            )
    return mirror.file


def _mirror(place: TableLocation, table: dict[str, Any]) -> Mirror:
    kinds = {"name": str, "model": str, "licence": str, "size": int, "sha256": str}
    required = ("name", "size", "sha256", "package", "member")
    said = place.read(table, kinds | {"package": str, "member": str, "parts": int}, required=required)
    accept_file_name(place, "name", said["name"])
    accept_checksum(place, "", said)
    source = index_source(place, "", said | {"file": said["name"]})
    file = ModelFile(said["name"], said["size"], said["sha256"])
    return Mirror(file, source, said.get("model", ""), said.get("licence", ""), place.says("name"))
