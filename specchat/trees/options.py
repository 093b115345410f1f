"""Options of the tree policies, apart from their code so that listing them imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from specchat.errors import UsageError
from specchat.registry import option


@dataclass(frozen=True)
class ExpansionOptions:
    """Options of `expansion`."""

    widths: str = option("", "children at depth 1, 2, …, such as 3,2,1,1; empty: `width` at depth 1, then 1")

    def __post_init__(self) -> None:
        self.per_depth()

    def per_depth(self) -> tuple[int, ...]:
        """The widths as numbers; empty where none were given."""
        words = [w for w in self.widths.replace(" ", "").split(",") if w]
        if not all(w.isdecimal() and int(w) >= 1 for w in words):
            raise UsageError(f"expansion.widths = {self.widths!r} must be whole numbers from 1, such as 3,2,1")
        return tuple(int(w) for w in words)
