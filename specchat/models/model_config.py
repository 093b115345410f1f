"""A model's configuration: as transformers reads it, or as it was remembered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specchat.models.decoder.shape import unsupported
from specchat.models.weights.config_file import CONFIG, read_config
from specchat.models.weights.foreign_code import one_line
from specchat.models.weights.transformers_cache import converted_folder, remembered_config

_LOCAL = {"local_files_only": True, "trust_remote_code": False}
"""Nothing is fetched, no code is run."""


def open_config(path: Path) -> tuple[Path, Any]:
    """The configuration of a GGUF file or of a folder of safetensors, and the folder where it and the tokenizer lie.

    Raises:
        WeightsError: a file cannot be read, or holds invalid values.
        ModelError: transformers makes no configuration of it.
    """
    folder = _checked_folder(path)
    return folder, _config_in(folder, path)


def known_config(path: Path) -> tuple[Path, Any]:
    """The same, or what is remembered of it where our own decoder runs the model: transformers need not be asked.

    Raises:
        WeightsError: a file cannot be read, or holds invalid values.
        ModelError: transformers makes no configuration of it.
    """
    folder = _checked_folder(path)
    known = remembered_config(folder)
    return folder, _config_in(folder, path) if known is None or unsupported(known) else known


def _checked_folder(path: Path) -> Path:
    folder = converted_folder(path) if path.is_file() else path
    read_config(folder / CONFIG, named=path if path.is_file() else None)
    return folder


def _config_in(folder: Path, path: Path) -> Any:
    from transformers import AutoConfig

    with one_line(f"{path} cannot be used"):
        return AutoConfig.from_pretrained(folder, **_LOCAL)
