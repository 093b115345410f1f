"""Folders of trained drafters as tests need them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from specchat.config.trained_drafters import WEIGHTS, TrainedDrafter, write_drafter


def trained_folder(
    folder: Path, tensors: Mapping[str, Tensor], method: str, target_sha256: str = "ab" * 32, **options: Any
) -> TrainedDrafter:
    """A folder with these weights, described as a drafter of this method for a target of this checksum."""
    folder.mkdir(parents=True)
    save_file(dict(tensors), folder / WEIGHTS)
    return write_drafter(
        folder,
        method=method,
        target="tiny",
        target_sha256=target_sha256,
        licence="Apache-2.0",
        options=options,
        data={"source": "none"},
        figures={"acceptance_length": 1.5},
    )
