"""Which models llama.cpp runs, and loading them: its weights, and a check of memory before they are read."""

from __future__ import annotations

from pathlib import Path

import torch

from specchat.config.values import ModelSpec, gguf_parts
from specchat.errors import NotEnoughMemory, UsageError
from specchat.models.backends.llama_cpp import LlamaCppModel
from specchat.models.backends.llama_library import LlamaWeights, library, offloads
from specchat.models.machine import available_bytes

LLAMA = "llama.cpp"


def chosen_backend(spec: ModelSpec, wanted: str) -> str:
    """The backend that was asked for now, else the one that models.toml names for the model."""
    return spec.backend if wanted == "auto" else wanted


def steps_in(backend: str, path: Path, *, cards: bool) -> bool:
    """Whether llama.cpp runs a file that our own decoder does not, unasked: it has a card to run it on."""
    return backend == "auto" and cards and path.is_file() and path.suffix == ".gguf" and offloads()


def load_llama(spec: ModelSpec, path: Path, *, cards: bool) -> tuple[LlamaCppModel, tuple[str, ...]]:
    """A model over the file's weights, which has read nothing, and what to say about it.

    Args:
        cards: whether layers may go to a card.

    Raises:
        InstallationError: llama-cpp-python is not installed.
        UsageError: the model is no GGUF file, or an option needs what the library was built without.
        ModelError: llama.cpp does not load it.
    """
    library()
    if not path.is_file():
        raise UsageError(f"backend = llama.cpp reads GGUF files, and {spec.name} is none; nearest that works: own")
    _check_memory(spec, path, cards=cards)
    weights = LlamaWeights(spec.name, path, spec.llama, processor_only=not cards)
    limit = spec.context_tokens or weights.trained_tokens
    notes: tuple[str, ...] = ()
    if cards and spec.llama.gpu_layers and not offloads():
        notes = (f"{spec.name}: gpu_layers has no effect, as this llama-cpp-python was built without a card",)
    return LlamaCppModel(weights, limit), notes


def _check_memory(spec: ModelSpec, path: Path, *, cards: bool) -> None:
    """Refuse weights that will not fit, where they stay on the processor and are not to be left in the file."""
    options = spec.llama
    if options.mmap or options.rpc_servers or (cards and offloads()):
        return
    needed = sum(part.stat().st_size for part in map(Path, gguf_parts(str(path))) if part.is_file())
    available = available_bytes(torch.device("cpu"))
    if available is not None and needed > available:
        raise NotEnoughMemory(
            f"{spec.name} needs about {needed / 1e9:.1f} GB and {available / 1e9:.1f} GB are free; choose a smaller "
            f"model, or set mmap = true for it in models.toml, which reads weights from the file again and again"
        )
