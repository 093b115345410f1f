"""How far fetching and checking of weights has come: bars, plain lines, or events."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from specchat.cli.sizes import sized
from specchat.engine.protocol.stage_text import stage_text

if TYPE_CHECKING:
    from specchat.models.hub.disk import Progress


def print_event(progress: Progress) -> None:
    """One line of the engine's own protocol, for a program that watches."""
    from specchat.engine.protocol.codec import encode
    from specchat.engine.protocol.events import Loading

    p = progress
    sys.stdout.buffer.write(encode(Loading(stage=p.stage, item=p.item, done=p.done, total=p.total, rate=p.rate)))
    sys.stdout.buffer.flush()


@contextmanager
def reporter() -> Iterator[Callable[[Progress], None]]:
    """Something to tell progress to: a bar on a terminal, plain lines elsewhere; both on standard error."""
    if not sys.stderr.isatty():
        yield Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    text = TextColumn("{task.description}", markup=False)
    with Bars(text, BarColumn(), DownloadColumn(), TransferSpeedColumn(), console=Console(stderr=True)) as bars:
        yield BarPerItem(bars)


class BarPerItem:
    """One bar for each stage of each item."""

    def __init__(self, bars: Any) -> None:
        self._bars = bars
        self._tasks: dict[str, Any] = {}

    def __call__(self, progress: Progress) -> None:
        label = stage_text(progress.stage, progress.item)
        if label not in self._tasks:
            self._tasks[label] = self._bars.add_task(label, total=None)
        self._bars.update(self._tasks[label], completed=progress.done, total=progress.total or None)


@dataclass
class Lines:
    """A line when an item begins, every two seconds while it goes on, and when it is through."""

    interval_s: float = 2.0
    _label: str = ""
    _last_s: float = 0.0
    _through: bool = False

    def __call__(self, progress: Progress) -> None:
        label = stage_text(progress.stage, progress.item)
        through = 0 < progress.total == progress.done
        now = time.monotonic()
        soon = now - self._last_s < self.interval_s and not (through and not self._through)
        if label == self._label and soon:
            return
        self._label, self._last_s, self._through = label, now, through
        typer.echo(f"{label}{_how_far(progress)}", err=True)


def _how_far(progress: Progress) -> str:
    if not progress.total:
        return f": {sized(progress.done)}" if progress.done else ""
    rate = f", {sized(progress.rate)}/s" if progress.rate else ""
    return f": {100 * progress.done // progress.total} % of {sized(progress.total)}{rate}"
