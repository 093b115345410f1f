"""Where other programs keep models, on Linux and macOS."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from specchat.config.state_files import read_small
from specchat.models.find.folder_walk import files_below
from specchat.models.find.found_model import FoundModel
from specchat.models.find.hub_cache import hub_models
from specchat.models.find.ollama import ollama_models

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
        yield FoundModel(file.stem, file, program)


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
