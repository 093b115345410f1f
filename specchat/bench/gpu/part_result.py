"""What a part found: figures, tables to read, goals reached or not, and what is wrong."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Goal:
    """A figure and its target value. Missing it is reported and is not an error.

    Args:
        at_least: whether the wanted figure is a floor rather than a ceiling.
    """

    what: str
    value: float
    wanted: float
    at_least: bool = True

    @property
    def reached(self) -> bool:
        return self.value >= self.wanted if self.at_least else self.value <= self.wanted


@dataclass(frozen=True)
class Table:
    """Cells as they are shown."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Outcome:
    """What one part found.

    Args:
        figures: everything measured, for further computation.
        wrong: texts that are not the target's: these are faults.
    """

    figures: dict[str, Any] = field(default_factory=dict)
    tables: tuple[Table, ...] = ()
    goals: tuple[Goal, ...] = ()
    notes: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()

    def record(self) -> dict[str, Any]:
        """As JSON holds it."""
        return dataclasses.asdict(self)

    @classmethod
    def of(cls, record: dict[str, Any]) -> Outcome:
        """From what JSON gave back."""
        return cls(
            figures=record["figures"],
            tables=tuple(
                Table(table["title"], tuple(table["columns"]), tuple(tuple(row) for row in table["rows"]))
                for table in record["tables"]
            ),
            goals=tuple(Goal(**goal) for goal in record["goals"]),
            notes=tuple(record["notes"]),
            wrong=tuple(record["wrong"]),
        )
