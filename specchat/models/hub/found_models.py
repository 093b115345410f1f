"""Models that other programs keep on this machine: Ollama's store, the hub's cache, and folders of GGUF files.

Folders are searched down to a fixed depth and up to a fixed number of entries.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from specchat.config.kept_files import read_small
from specchat.config.values import gguf_stem
from specchat.errors import WeightsError
from specchat.models.hub.recommended_sampling import sampling_of_ollama
from specchat.models.weights.config_file import parse_object


@dataclass(frozen=True)
class FoundModel:
    """A GGUF file, or a folder of safetensors, where it lies.

    Args:
        name: what the other program calls it: `llama3.2:3b`, `Qwen/Qwen3-0.6B`.
        program: whose it is: `Ollama`, `LM Studio`, `hub cache`, or the folder it was found in.
        sampling: the settings that the other program has for it.
    """

    name: str
    path: Path
    program: str
    sampling: Mapping[str, Any] = field(default_factory=dict)


_OLLAMA = ("~/.ollama/models", "/usr/share/ollama/.ollama/models", "/var/lib/ollama/.ollama/models")

_LM_STUDIO = ("~/.lmstudio/models", "~/.cache/lm-studio/models")

_FILES = {
    "llama.cpp": ("~/.cache/llama.cpp", "~/Library/Caches/llama.cpp"),
    "Jan": ("~/.local/share/Jan/data/llamacpp/models", "~/Library/Application Support/Jan/data/llamacpp/models"),
    "GPT4All": (
        "~/.local/share/nomic.ai/GPT4All", "~/Library/Application Support/nomic.ai/GPT4All", "~/.cache/gpt4all",
    ),
    "": ("~/models", "~/Models", "~/weights", "~/llms", "~/Downloads", "~/Documents/models"),
}  # fmt: skip
"""Folders of GGUF files, by the program whose they are."""


@dataclass(frozen=True)
class Surroundings:
    """A user's home and environment; of tests one they made."""

    home: Path
    environment: Mapping[str, str]
    root: Path = Path("/")

    def place(self, path: str) -> Path:
        """`~/x` in the home, `/x` below the root."""
        return self.home / path[2:] if path.startswith("~/") else self.root / path.lstrip("/")

    def named(self, variable: str) -> list[Path]:
        """The folder that an environment variable names, if it is set to an absolute path."""
        value = self.environment.get(variable, "")
        path = Path(value.replace("~", str(self.home), 1) if value.startswith("~/") else value)
        return [path] if value and "\0" not in value and path.is_absolute() else []


def find_models(here: Surroundings) -> Iterator[FoundModel]:
    """Every model of another program that lies in one of the usual places."""
    for store in _distinct(here.named("OLLAMA_MODELS"), map(here.place, _OLLAMA)):
        yield from ollama_models(store)
    for folder in _distinct(_lm_studio_home(here), map(here.place, _LM_STUDIO)):
        yield from _files("LM Studio", folder)
    for cache in _distinct(_hub_caches(here)):
        yield from hub_models(cache)
    for program, places in _FILES.items():
        own = here.named("LLAMA_CACHE") if program == "llama.cpp" else []
        for folder in _distinct(own, map(here.place, places)):
            shown = program or str(folder).replace(str(here.home), "~", 1)
            yield from _files(shown, folder)


def _files(program: str, folder: Path) -> Iterator[FoundModel]:
    for file in files_below(folder, ".gguf"):
        yield FoundModel(gguf_stem(file), file, program)


def _lm_studio_home(here: Surroundings) -> list[Path]:
    """Where LM Studio says that its home is, in a file of one line."""
    said = read_small(here.place("~/.lmstudio-home-pointer"), 4096).decode("utf-8", "replace").strip()
    return [Path(said) / "models"] if said.startswith("/") and "\0" not in said else []


def _hub_caches(here: Surroundings) -> list[Path]:
    return [
        *here.named("HF_HUB_CACHE"),
        *(home / "hub" for home in here.named("HF_HOME")),
        *(cache / "huggingface" / "hub" for cache in here.named("XDG_CACHE_HOME")),
        here.place("~/.cache/huggingface/hub"),
    ]


def _distinct(*groups: Iterator[Path] | list[Path]) -> list[Path]:
    """The folders that exist, each once, however it is reached."""
    seen: dict[str, Path] = {}
    for group in groups:
        for folder in group:
            try:
                if folder.is_dir():
                    seen.setdefault(str(folder.resolve()), folder)
            except OSError:
                continue
    return list(seen.values())


MOST_ENTRIES = 20_000
DEEPEST = 5


def entries(folder: Path) -> list[os.DirEntry[str]]:
    """The entries of a folder by name, hidden ones left out; none where it cannot be read."""
    try:
        with os.scandir(folder) as listed:
            shown = (entry for entry in listed if not entry.name.startswith("."))
            return sorted(islice(shown, MOST_ENTRIES), key=lambda entry: entry.name)
    except OSError:
        return []


def files_below(folder: Path, suffix: str = "", deepest: int = DEEPEST) -> Iterator[Path]:
    """The regular files below a folder, by name. Links to folders are not followed, so nothing is seen twice."""
    left = MOST_ENTRIES
    waiting = [(folder, 0)]
    while waiting:
        here, depth = waiting.pop()
        below: list[tuple[Path, int]] = []
        for entry in entries(here):
            left -= 1
            if left < 0:
                return
            try:
                if entry.is_dir(follow_symlinks=False):
                    below.append((Path(entry.path), depth + 1))
                elif entry.name.endswith(suffix) and entry.is_file():
                    yield Path(entry.path)
            except OSError:
                continue
        waiting += reversed([one for one in below if one[1] <= deepest])


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
