"""Progress of fetching and of training: bars on a terminal, plain lines elsewhere, or messages to a program."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from specchat.engine.protocol.training_report import Report
    from specchat.models.hub.disk import Progress
    from specchat.training.job import Stage

Clock = Callable[[], float]

_FETCH_LINE_EVERY_S = 2.0
_STAGE_LINE_EVERY_S = 10.0
_REPORT_EVERY_S = 0.25


def sized(count: float) -> str:
    """Bytes in the unit that fits: `512 B`, `8.1 kB`, `98.4 MB`, `1.12 GB`."""
    if count < 1000:
        return f"{count:.0f} B"
    if count < 999_950:
        return f"{count / 1e3:.1f} kB"
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


class StepPace:
    """When a step is told again, and how long it still takes at its speed so far."""

    def __init__(self, clock: Clock, every_s: float) -> None:
        self._clock, self._every_s = clock, every_s
        self._name, self._began_s, self._from = "", 0.0, 0.0
        self._last_s = -every_s
        self._through = False

    def is_due(self, name: str, done: float, total: float) -> bool:
        """Whether the step has just begun, has just ended, or was told long enough ago."""
        now, through = self._clock(), 0 < total <= done
        if begun := name != self._name:
            self._name, self._began_s, self._from, self._through = name, now, done, False
        due = begun or now - self._last_s >= self._every_s or (through and not self._through)
        if due:
            self._last_s, self._through = now, through
        return due

    def left_s(self, done: float, total: float) -> float | None:
        """Seconds; None where nothing is known yet."""
        gained = done - self._from
        if gained <= 0 or done >= total:
            return None
        return (total - done) * max(0.0, self._last_s - self._began_s) / gained


class _Bars:
    """One bar for each step."""

    def __init__(self, bars: Any) -> None:
        self._bars = bars
        self._tasks: dict[str, Any] = {}

    def show(self, name: str, done: float, total: float, says: str = "") -> None:
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=None, says="")
        self._bars.update(self._tasks[name], completed=done, total=total or None, says=says)


# -------------------------------------------------------------------------------------------------- fetching


@contextmanager
def fetch_reporter() -> Iterator[Callable[[Progress], None]]:
    """Receives the progress of fetching and checking weights, and shows it on standard error."""
    if not sys.stderr.isatty():
        yield FetchLines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
    from rich.progress import Progress as RichBars

    text = TextColumn("{task.description}", markup=False)
    with RichBars(text, BarColumn(), DownloadColumn(), TransferSpeedColumn(), console=Console(stderr=True)) as rich:
        bars = _Bars(rich)
        yield lambda progress: bars.show(_label(progress), progress.done, progress.total)


def print_event(progress: Progress) -> None:
    """One line of the engine's own protocol, for a program that watches."""
    from specchat.engine.protocol.codec import encode
    from specchat.engine.protocol.events import Loading

    p = progress
    sys.stdout.buffer.write(encode(Loading(stage=p.stage, item=p.item, done=p.done, total=p.total, rate=p.rate)))
    sys.stdout.buffer.flush()


class FetchLines:
    """A line when an item begins, every two seconds while it goes on, and when it is through."""

    def __init__(self, every_s: float = _FETCH_LINE_EVERY_S) -> None:
        self._pace = StepPace(time.monotonic, every_s)

    def __call__(self, progress: Progress) -> None:
        if self._pace.is_due(_label(progress), progress.done, progress.total):
            typer.echo(f"{_label(progress)}{_how_far(progress)}", err=True)


def _label(progress: Progress) -> str:
    from specchat.engine.protocol.stage_text import stage_text

    return stage_text(progress.stage, progress.item)


def _how_far(progress: Progress) -> str:
    if not progress.total:
        return f": {sized(progress.done)}" if progress.done else ""
    rate = f", {sized(progress.rate)}/s" if progress.rate else ""
    return f": {100 * progress.done // progress.total} % of {sized(progress.total)}{rate}"


# -------------------------------------------------------------------------------------------------- training


@contextmanager
def stage_reporter(clock: Clock, *, as_reports: bool) -> Iterator[Callable[[Stage], None]]:
    """Receives the stages of a training. Bars and lines go to standard error, reports to standard output."""
    if as_reports:
        yield StageReports(clock)
        return
    if not sys.stderr.isatty():
        yield StageLines(clock)
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichBars
    from rich.table import Column

    rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")
    name = TextColumn("{task.description}", markup=False)
    says = TextColumn("{task.fields[says]}", markup=False, table_column=rest)
    columns = (name, BarColumn(bar_width=20), TextColumn("{task.percentage:>3.0f} %"), TimeRemainingColumn(), says)
    with RichBars(*columns, console=Console(stderr=True), expand=True) as rich:
        bars = _Bars(rich)
        yield lambda stage: bars.show(stage.name, stage.done, stage.total, stage.says)


def print_report(report: Report) -> None:
    """One line for the program that watches; where it has gone, the same as Ctrl+C."""
    from specchat.engine.protocol.training_report import encode_report

    try:
        sys.stdout.buffer.write(encode_report(report))
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise KeyboardInterrupt from None


class StageLines:
    """A line when a stage begins, every ten seconds while it goes on, and when it is through."""

    def __init__(self, clock: Clock) -> None:
        self._pace = StepPace(clock, _STAGE_LINE_EVERY_S)

    def __call__(self, stage: Stage) -> None:
        from specchat.engine.protocol.training_report import span

        if self._pace.is_due(stage.name, stage.done, stage.total):
            left_s = self._pace.left_s(stage.done, stage.total)
            share = f"{100 * stage.done / stage.total:.0f} %" if stage.total else ""
            words = (share, stage.says, "" if left_s is None else f"{span(left_s)} to go")
            typer.echo(f"{stage.name}: {', '.join(word for word in words if word)}", err=True)


class StageReports:
    """A report when a stage begins, four times a second while it goes on, and when it is through."""

    def __init__(self, clock: Clock) -> None:
        self._pace = StepPace(clock, _REPORT_EVERY_S)

    def __call__(self, stage: Stage) -> None:
        from specchat.engine.protocol.training_report import Reached

        if not self._pace.is_due(stage.name, stage.done, stage.total):
            return
        last, left_s = stage.measured or {}, self._pace.left_s(stage.done, stage.total)
        by_depth = list(last.get("by_depth", ()))
        print_report(Reached(stage.name, stage.done, stage.total, stage.says, left_s, last.get("tau"), by_depth))
