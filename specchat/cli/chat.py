"""Opening the app: on an engine, or on a recording."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def open_chat(settings: dict[str, Any], engine: str) -> None:
    raise NotImplementedError(settings, engine)


def open_replay(file: Path) -> None:
    raise NotImplementedError(file)
