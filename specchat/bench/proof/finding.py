"""What one check found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


@dataclass(frozen=True)
class Finding:
    """What one check found, in a sentence and in figures."""

    claim: str
    status: str
    detail: str
    figures: dict[str, Any] = field(default_factory=dict)
