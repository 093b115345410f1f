"""What the app knows about a pair before it is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class PairInfo:
    """One target and what drafts for it, and whether its weights are on this machine."""

    name: str
    target: str
    draft: str | None = None
    state: Literal["ready", "partial", "missing"] = "ready"
    download_bytes: int = 0
    summary: str = ""
    notes: str = ""
