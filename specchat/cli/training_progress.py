"""How far a training is and how long a stage still takes: bars on a terminal, plain lines, or reports to a program."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from specchat.engine.protocol.training_report import Reached, Report, encode_report, span

if TYPE_CHECKING:
    from specchat.training.job import Stage

_LINE_EVERY_S = 10.0
_REPORT_EVERY_S = 0.25

Clock = Callable[[], float]


@contextmanager
def reporter(clock: Clock, *, as_reports: bool) -> Iterator[Callable[[Stage], None]]:
    """Something to tell stages to. Bars and lines go to standard error, reports to standard output."""
    if as_reports:
        yield Reports(clock)
        return
    if not sys.stderr.isatty():
        yield Lines(clock)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")
    name = TextColumn("{task.description}", markup=False)
    says = TextColumn("{task.fields[says]}", markup=False, table_column=rest)
    columns = (name, BarColumn(bar_width=20), TextColumn("{task.percentage:>3.0f} %"), TimeRemainingColumn(), says)
    with Progress(*columns, console=Console(stderr=True), expand=True) as bars:
        yield Bars(bars)


def print_report(report: Report) -> None:
    """One line for the program that watches; where it has gone, the same as Ctrl+C."""
    try:
        sys.stdout.buffer.write(encode_report(report))
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise KeyboardInterrupt from None


class Bars:
    """One bar for each stage."""

    def __init__(self, bars: Any) -> None:
        self._bars = bars
        self._tasks: dict[str, Any] = {}

    def __call__(self, stage: Stage) -> None:
        if stage.name not in self._tasks:
            self._tasks[stage.name] = self._bars.add_task(stage.name, total=stage.total or None, says="")
        task, total = self._tasks[stage.name], stage.total or None
        self._bars.update(task, completed=stage.done, total=total, says=stage.says)


class Pace:
    """When a stage is reported again, and how long it still takes at its speed so far."""

    def __init__(self, clock: Clock, every_s: float) -> None:
        self._clock, self._every_s = clock, every_s
        self._name, self._began_s, self._from = "", 0.0, 0.0
        self._last_s = -every_s
        self._through = False

    def is_due(self, stage: Stage) -> bool:
        """Whether it has just begun, has just ended, or was reported long enough ago."""
        now, through = self._clock(), 0 < stage.total <= stage.done
        if begun := stage.name != self._name:
            self._name, self._began_s, self._from, self._through = stage.name, now, stage.done, False
        due = begun or now - self._last_s >= self._every_s or (through and not self._through)
        if due:
            self._last_s, self._through = now, through
        return due

    def left_s(self, stage: Stage) -> float | None:
        """Seconds; None where nothing is known yet."""
        gained = stage.done - self._from
        if gained <= 0 or stage.done >= stage.total:
            return None
        return (stage.total - stage.done) * max(0.0, self._last_s - self._began_s) / gained


class Lines:
    """A line when a stage begins, every ten seconds while it goes on, and when it is through."""

    def __init__(self, clock: Clock) -> None:
        self._pace = Pace(clock, _LINE_EVERY_S)

    def __call__(self, stage: Stage) -> None:
        if self._pace.is_due(stage):
            left_s = self._pace.left_s(stage)
            share = f"{100 * stage.done / stage.total:.0f} %" if stage.total else ""
            words = (share, stage.says, "" if left_s is None else f"{span(left_s)} to go")
            typer.echo(f"{stage.name}: {', '.join(word for word in words if word)}", err=True)


class Reports:
    """A report when a stage begins, four times a second while it goes on, and when it is through."""

    def __init__(self, clock: Clock) -> None:
        self._pace = Pace(clock, _REPORT_EVERY_S)

    def __call__(self, stage: Stage) -> None:
        if not self._pace.is_due(stage):
            return
        last = stage.measured or {}
        print_report(
            Reached(
                stage.name,
                stage.done,
                stage.total,
                stage.says,
                self._pace.left_s(stage),
                last.get("tau"),
                list(last.get("by_depth", ())),
            )
        )
