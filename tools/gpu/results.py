"""Results of the parts, the file that is written after every part, and the same as Markdown."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from specchat.config.kept_files import replacing
from specchat.errors import UsageError


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
    """The result of one part.

    Args:
        figures: everything measured, for further computation.
        wrong: texts that are not the target's and products that are wrong: these are faults.
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


@dataclass(frozen=True)
class Done:
    """A part that was measured, when, and how long that took."""

    outcome: Outcome
    seconds: float
    made: str


@dataclass
class Results:
    """The results in one file. Parts measured on another device, at another size or with other weights do not count.

    Args:
        setup: what the parts were measured with, as `Setup.describe` says.
        circumstances: of the run that wrote last.
    """

    file: Path
    setup: dict[str, Any]
    circumstances: dict[str, Any]
    parts: dict[str, Done] = field(default_factory=dict)

    def load(self) -> None:
        """Take over what an earlier run with the same setup has measured.

        Raises:
            UsageError: the file is not one of these.
        """
        if not self.file.is_file():
            return
        try:
            kept = json.loads(self.file.read_text(encoding="utf-8"))
            if kept["setup"] == self.setup:
                self.parts = {
                    name: Done(Outcome.of(part["outcome"]), part["seconds"], part["made"])
                    for name, part in kept["parts"].items()
                }
        except (AttributeError, LookupError, TypeError, ValueError):
            raise UsageError(
                f"{self.file} holds no results of this program; remove it, or choose another --out"
            ) from None

    def add(self, name: str, outcome: Outcome, seconds: float) -> None:
        """Keep what a part found, on disk before this returns."""
        self.parts[name] = Done(outcome, seconds, datetime.now(UTC).isoformat(timespec="seconds"))
        parts = {
            name: {"made": done.made, "seconds": done.seconds, "outcome": done.outcome.record()}
            for name, done in self.parts.items()
        }
        written = {"setup": self.setup, "circumstances": self.circumstances, "parts": parts}
        with replacing(self.file, mode=0o644) as draft:
            draft.write_text(json.dumps(written, indent=1), encoding="utf-8")

    def figures(self, name: str) -> dict[str, Any] | None:
        """The figures of another part, if it has run."""
        return self.parts[name].outcome.figures if name in self.parts else None


def heading(circumstances: dict[str, Any], setup: dict[str, Any]) -> str:
    """Hardware, versions, command and date."""
    versions = ", ".join(f"{name} {version}" for name, version in circumstances["versions"].items())
    driver = f", driver {circumstances['driver']}" if circumstances.get("driver") else ""
    small = " · a small size, for testing: no figure of it means anything" if setup["tiny"] else ""
    lines = [
        f"### {circumstances['made'][:10]} · {setup['device']}{small}",
        f"Hardware: {setup['device']}{driver}; {circumstances['processor']}, {circumstances['cores']} cores, "
        f"load {circumstances['load_average']:.1f}. {versions}; commit {circumstances['commit'] or 'unknown'}; "
        f"number format {setup['precision']}.",
        f"`{circumstances['command']}`",
    ]
    return "\n\n".join(lines)


def section(name: str, about: str, done: Done) -> str:
    """One part: its tables, its goals, its notes."""
    return "\n\n".join(_paragraphs(name, about, done))


def _paragraphs(name: str, about: str, done: Done) -> Iterator[str]:
    yield f"**{name}**: {about} ({done.made[:16]}, took {done.seconds:.1f} s)"
    for table in done.outcome.tables:
        yield f"{table.title}\n\n{_lines(table.columns, table.rows)}"
    if done.outcome.goals:
        yield _lines(("figure", "measured", "wanted", ""), [_goal(goal) for goal in done.outcome.goals])
    for note in done.outcome.notes:
        yield f"Note: {note}."
    for fault in done.outcome.wrong:
        yield f"**WRONG: {fault}**"


def _goal(goal: Goal) -> tuple[str, ...]:
    sign = "≥" if goal.at_least else "≤"
    return goal.what, f"{goal.value:.3g}", f"{sign} {goal.wanted:.3g}", "reached" if goal.reached else "NOT REACHED"


def _lines(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in cells)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table from any sequences."""
    return Table(title, tuple(columns), tuple(tuple(row) for row in rows))
