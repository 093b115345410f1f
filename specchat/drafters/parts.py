"""What `assemble` hands every drafter: whatever a drafter may be built from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specchat.core.seams import Model


@dataclass(frozen=True)
class Parts:
    """The pair's draft model, if it has one, and V.

    Args:
        options: options of the drafters that this one is made of, by name; defaults where a name is missing.
    """

    vocab_size: int
    draft_model: Model | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
