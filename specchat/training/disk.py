"""Room on the disk, asked for before anything is written."""

from __future__ import annotations

import shutil
from pathlib import Path

from specchat.errors import TrainingError

_SPARE_BYTES = 256 << 20


def need_space(folder: Path, needed_bytes: int, what: str) -> None:
    """Refuse to begin what cannot be finished.

    Raises:
        TrainingError: with what is needed and what is free.
    """
    free = shutil.disk_usage(folder).free
    if free < needed_bytes + _SPARE_BYTES:
        raise TrainingError(
            f"not enough space in {folder}: {what} need {needed_bytes / 1e9:.1f} GB, {free / 1e9:.1f} GB are free; "
            "ask for fewer --tokens, or make room"
        )
