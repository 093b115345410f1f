"""How far a training is and how long it still takes: one bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from specchat.training.job import Stage

_LINE_EVERY_S = 10.0


@contextmanager
def reporter() -> Iterator[Callable[[Stage], None]]:
    """Something to tell stages to; both kinds write to standard error."""
    if not sys.stderr.isatty():
        yield Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    text = TextColumn("{task.description}", markup=False)
    columns = (text, BarColumn(bar_width=24), TextColumn("{task.percentage:>3.0f} %"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        yield Bars(bars)


class Bars:
    """One bar for each stage."""

    def __init__(self, bars: Any) -> None:
        self._bars = bars
        self._tasks: dict[str, Any] = {}

    def __call__(self, stage: Stage) -> None:
        if stage.name not in self._tasks:
            self._tasks[stage.name] = self._bars.add_task(stage.name, total=stage.total)
        text = f"{stage.name:9}{stage.says}"
        self._bars.update(self._tasks[stage.name], completed=stage.done, total=stage.total, description=text)


@dataclass
class Lines:
    """A line when a stage begins, every ten seconds while it goes on, and when it is through."""

    _name: str = ""
    _began_s: float = 0.0
    _from: float = 0.0
    _last_s: float = 0.0
    _through: bool = False

    def __call__(self, stage: Stage) -> None:
        now, through = time.monotonic(), stage.done >= stage.total
        if stage.name != self._name:
            self._name, self._began_s, self._from, self._last_s, self._through = stage.name, now, stage.done, 0.0, False
        if now - self._last_s < _LINE_EVERY_S and not (through and not self._through):
            return
        self._last_s, self._through = now, through
        words = (f"{100 * stage.done / stage.total:.0f} %", stage.says, self._remaining(stage, now))
        typer.echo(f"{stage.name}: {', '.join(word for word in words if word)}", err=True)

    def _remaining(self, stage: Stage, now: float) -> str:
        """How long it still takes, as fast as it went so far."""
        gained = stage.done - self._from
        if gained <= 0 or stage.done >= stage.total:
            return ""
        return f"{_span((stage.total - stage.done) * (now - self._began_s) / gained)} to go"


def _span(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{seconds:.0f} s" if seconds < 90 else f"{minutes} min" if minutes < 90 else f"{minutes / 60:.1f} h"
