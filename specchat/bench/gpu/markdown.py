"""Results as docs/measurements.md wants them: tables with what is needed to measure them again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from specchat.bench.gpu.part_result import Goal, Table
from specchat.bench.gpu.results import Done


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
