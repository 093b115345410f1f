"""The catalog of models.toml and mirrors.toml: models with their files and sources, pairs, trained drafters, mirrors.

The shipped models.toml is read first, the user's own on top of it by name, and mirrors are added to the models.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

from specchat.config.directories import config_dir, expanded, shipped_file
from specchat.config.toml_file import NAME, TableLocation, parse_if_there, read_text
from specchat.config.toml_file import tables as toml_tables
from specchat.config.values import (
    COMPANION_SUFFIXES,
    DRAFTER_FILES,
    LLAMA_KEYS,
    WEIGHT_SUFFIXES,
    Catalog,
    DrafterSpec,
    HubSource,
    IndexSource,
    Mirror,
    ModelFile,
    ModelSpec,
    PairSpec,
    PathSource,
    ScriptedSource,
    Source,
    gguf_parts,
    read_llama_options,
)
from specchat.errors import ConfigError, meant, nearest, short
from specchat.settings import OPTIONS


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
                files = tuple(_agreed(model, f, mirror) if f.name == mirror.file.name else f for f in model.files)
                sources = model.sources if mirror.source in model.sources else (*model.sources, mirror.source)
                widened[name] = replace(model, files=files, sources=sources)
    return widened


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


PACKAGE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?==[A-Za-z0-9][A-Za-z0-9.!+_-]*")
"""A pinned package and nothing else: it can hold neither an option nor an address."""


def _model(place: TableLocation, name: str, table: dict[str, Any]) -> ModelSpec:
    place.named(name)
    kinds: dict[str, type] = {"source": str, "sources": list, "files": list, "licence": str, "notes": str}
    said = place.read(table, kinds | LLAMA_KEYS | {"context_tokens": int, "parameters": int, "backend": str})
    if (backend := said.get("backend", "auto")) not in OPTIONS["backend"].choices:
        raise place.error("backend", f"= {short(backend)} is not one of its values: {OPTIONS['backend'].range_text()}")
    if about_llama := {key: said.pop(key) for key in LLAMA_KEYS if key in said}:
        said["llama"] = read_llama_options(place, about_llama)
    for key in ("context_tokens", "parameters"):
        if said.get(key, 1) < 1:
            raise place.error(key, f"= {short(said[key])} must be above 0")
    files = tuple(_file(place, place.table_at("files", entry)) for entry in said.pop("files", ()))
    sources = _sources(place, said.pop("source", None), said.pop("sources", ()), files)
    named = next((base_name(source.file) for source in sources if isinstance(source, HubSource) and source.file), None)
    files = files or (tuple(map(ModelFile, gguf_parts(named))) if named else ())
    return ModelSpec(name=name, sources=sources, files=files, **said)


def _drafter(place: TableLocation, name: str, table: dict[str, Any]) -> DrafterSpec:
    place.named(name)
    kinds = {"method": str, "target": str, "sources": list, "files": list, "licence": str, "notes": str}
    said = place.read(table, kinds, required=("method", "target", "sources", "files"))
    about = {"name": str, "size": int, "sha256": str}
    files = [
        place.read(place.table_at("files", f), about, required=tuple(about), within="files.") for f in said["files"]
    ]
    for file in files:
        accept_checksum(place, "files.", file)
    if sorted(file["name"] for file in files) != sorted(DRAFTER_FILES):
        raise place.error("files", f"must name {' and '.join(DRAFTER_FILES)}, each with size and sha256")
    said["files"] = tuple(ModelFile(**file) for file in files)
    said["sources"] = _sources(place, None, said["sources"], said["files"])
    return DrafterSpec(name=name, **said)


def _file(place: TableLocation, table: dict[str, Any]) -> ModelFile:
    said = place.read(table, {"name": str, "size": int, "sha256": str}, required=("name",), within="files.")
    accept_file_name(place, "files.name", said["name"])
    accept_checksum(place, "files.", said)
    return ModelFile(**said)


def _sources(place: TableLocation, word: str | None, tables: Any, files: tuple[ModelFile, ...]) -> tuple[Source, ...]:
    if word is not None:
        if word != "scripted":
            raise place.error("source", f"= {short(word)} is not one of its values{nearest(word, ('scripted',))}")
        if tables:
            raise place.error("sources", "cannot be combined with source = 'scripted', which needs no weights")
        return (ScriptedSource(),)
    if not tables:
        raise place.error("sources", "is missing: say where the weights come from, or source = 'scripted'")
    return tuple(_source(place, place.table_at("sources", table), files) for table in tables)


def _source(place: TableLocation, table: dict[str, Any], files: tuple[ModelFile, ...]) -> Source:
    kinds: dict[str, Mapping[str, type]] = {
        "hub": {"hub": str, "file": str, "revision": str},
        "package": {"package": str, "member": str, "file": str, "parts": int},
        "path": {"path": str},
    }
    kind = next((kind for kind in kinds if kind in table), None)
    if kind is None:
        key = next(iter(table), "")
        raise place.error(f"sources.{key}", f"is not a known kind of source{nearest(key, kinds)}")
    said = place.read(table, kinds[kind], within="sources.")
    if kind == "path":
        try:
            return PathSource(place.file.parent / expanded(said["path"]))
        except ConfigError as error:
            raise place.error("sources.path", f"= {error}") from None
    if kind == "hub":
        return _hub_source(place, said, files)
    said.setdefault("file", files[0].name if len(files) == 1 else None)
    source = index_source(place, "sources.", said)
    if not any(file.name == source.file and file.sha256 for file in files):
        problem = "needs that file under `files` with its sha256: a package index vouches for nothing"
        raise place.error("sources.file", f"= {short(source.file)} {problem}")
    return source


def _hub_source(place: TableLocation, said: dict[str, Any], files: tuple[ModelFile, ...]) -> HubSource:
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", said["hub"], re.ASCII):
        raise place.error("sources.hub", f"= {short(said['hub'])} is not a repository: owner/name")
    if "file" in said and base_name(said["file"]) not in {file.name for file in files}:
        accept_file_name(place, "sources.file", base_name(said["file"]))
    return HubSource(said["hub"], said.get("file"), said.get("revision"))


def index_source(place: TableLocation, within: str, said: Mapping[str, Any]) -> IndexSource:
    for key in ("member", "file"):
        if not said.get(key):
            raise place.error(within + key, "is missing: say which file the package holds")
    source = IndexSource(said["package"], said["member"], said["file"], said.get("parts", 1))
    if not 1 <= source.parts <= 9999:
        raise place.error(within + "parts", f"= {short(source.parts)} is outside its range: 1 to 9999")
    if source.parts > 1 and source.part(1) == source.part(2):
        raise place.error(within + "parts", f"= {short(source.parts)}, but neither package nor member contains {{n}}")
    if not PACKAGE.fullmatch(source.part(1)[0]):
        raise place.error(within + "package", f"= {short(source.package)} must be written name==version")
    return source


def _pair(place: TableLocation, name: str, table: dict[str, Any], shipped: Mapping[str, PairSpec] | None) -> PairSpec:
    """A pair of a file; with `shipped`, of the user's file, which may add pairs, replace them or only tune them."""
    place.named(name)
    kinds = {"target": str, "draft": str, "drafts": list, "defaults": dict, "summary": str, "notes": str}
    said = place.read(table, kinds)
    inner = place.inside(place.table + ".defaults")
    if "pair" in (given := said.pop("defaults", {})):
        raise inner.error("pair", f"= {short(given['pair'])} cannot be a default of a pair")
    settings = inner.settings(given)
    if "target" not in said:
        return replace(_tuned(place, name, said, shipped or {}), own=settings)
    said["drafts"] = _drafts(place, said.pop("draft", None), said.pop("drafts", None))
    if shipped is None:
        return PairSpec(name=name, defaults=settings, **said)
    return PairSpec(name=name, own=settings, yours=True, **said)


def _drafts(place: TableLocation, one: str | None, several: list[Any] | None) -> tuple[str, ...]:
    """The draft models: `draft` names one, `drafts` several, the one that is used unless another is asked for first."""
    if several is None:
        return () if one is None else (one,)
    if one is not None:
        raise place.error("draft", f"= {short(one)} cannot be combined with drafts; write it as one of them")
    names = tuple(place.typed("drafts", name, str) for name in several)
    if len(set(names)) < len(names):
        raise place.error("drafts", f"names {short(next(n for n in names if names.count(n) > 1))} twice")
    return names


def _tuned(place: TableLocation, name: str, said: dict[str, Any], shipped: Mapping[str, PairSpec]) -> PairSpec:
    """The shipped pair that an entry without a target gives other settings to."""
    if name not in shipped:
        raise place.error("target", f"is missing{meant(name, shipped)}")
    if said:
        raise place.error(next(iter(said)), "needs a target: of a shipped pair only `defaults` can change")
    return shipped[name]


def base_name(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def accept_file_name(place: TableLocation, key: str, name: str) -> None:
    if not NAME.fullmatch(name):
        raise place.error(key, f"= {short(name)} must be a plain file name")
    if not name.endswith(WEIGHT_SUFFIXES + COMPANION_SUFFIXES):
        raise place.error(key, f"= {short(name)} is refused: weights are read from .gguf and .safetensors files only")


def accept_checksum(place: TableLocation, within: str, said: Mapping[str, Any]) -> None:
    if said.get("size", 1) < 1:
        raise place.error(within + "size", f"= {short(said['size'])} must be above 0")
    if not re.fullmatch(r"[0-9a-f]{64}", said.get("sha256", "0" * 64)):
        raise place.error(within + "sha256", f"= {short(said['sha256'])} is not 64 hexadecimal digits in lower case")


def _entries(
    place: TableLocation, data: dict[str, Any], shipped: Mapping[str, PairSpec] | None = None
) -> tuple[Catalog, dict[str, TableLocation]]:
    """What a file says, and where each entry stands; with `shipped`, of the user's file, which may tune those pairs."""
    tables = place.read(data, {"models": dict, "pairs": dict, "drafters": dict})
    places = {f"{kind}.{name}": place.inside(f"{kind}.{name}") for kind in tables for name in tables[kind]}

    def read(kind: str, entry: Callable[..., Any]) -> dict[str, Any]:
        found = tables.get(kind, {}).items()
        return {name: entry(places[f"{kind}.{name}"], name, place.table_at(name, table)) for name, table in found}

    models, pairs = read("models", _model), read("pairs", partial(_pair, shipped=shipped))
    return Catalog(models, pairs, read("drafters", _drafter)), places


@lru_cache(maxsize=1)
def _shipped(file: Path, text: str) -> tuple[Catalog, dict[str, TableLocation]]:
    """The entries of the file that comes with specchat, by its text."""
    return _entries(TableLocation(file, text), toml_tables(file, text))


def load_catalog(users: tuple[TableLocation, dict[str, Any]] | None = None) -> Catalog:
    """The catalog; `users` stands for the user's models.toml before it is written.

    Raises:
        ConfigError: a file says something we cannot accept; the line names file, table, key and value.
    """
    users = parse_if_there(users_models()) if users is None else users
    file = shipped_file("models.toml")
    shipped, places = _shipped(file, read_text(file))
    own, own_places = _entries(*users, shipped.pairs) if users else (Catalog({}, {}), {})
    models, pairs = {**shipped.models, **own.models}, {**shipped.pairs, **own.pairs}
    drafters, places = {**shipped.drafters, **own.drafters}, places | own_places
    for pair in pairs.values():
        place = places[f"pairs.{pair.name}"]
        _refuse_unknown(place, "target", pair.target, models)
        for model in pair.drafts:
            _refuse_unknown(place, "draft" if len(pair.drafts) == 1 else "drafts", model, models)
    for drafter in drafters.values():
        place = places[f"drafters.{drafter.name}"]
        _refuse_unknown(place, "target", drafter.target, models)
        if drafter.name in models or drafter.name in pairs:
            raise place.error("", "has the name of a model or a pair")
    return Catalog(with_mirrors(models, load_mirrors()), pairs, drafters)


def _refuse_unknown(place: TableLocation, key: str, model: str, models: Mapping[str, ModelSpec]) -> None:
    if model not in models:
        raise place.error(key, f"= {short(model)} is not a model{nearest(model, models)}")


def users_models() -> Path:
    return config_dir() / "models.toml"
