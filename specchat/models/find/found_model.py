"""A model that another program keeps on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


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
