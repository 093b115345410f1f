"""What `assemble` hands every drafter: whatever a drafter may be built from."""

from __future__ import annotations

from dataclasses import dataclass

from specchat.core.seams import Model


@dataclass(frozen=True)
class Parts:
    """The pair's draft model, if it has one, and V."""

    vocab_size: int
    draft_model: Model | None = None
