"""The screen of a short benchmark: the settings in force against plain decoding."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import ClassVar

from textual.binding import BindingType

from specchat.engine.client.race import race_seed
from specchat.errors import UsageError
from specchat.tui.screens.race import RunScreen, changes
from specchat.tui.services.context import AppServices
from specchat.tui.state.race_lines import outcome_lines, progress_lines, series_text, table_lines
from specchat.tui.state.races import BenchQuestion, RaceSeries
from specchat.tui.text.cells import ScreenLine
from specchat.tui.text.key_names import bind
from specchat.tui.widgets.painted_lines import LinesView

_QUESTIONS = 6
_REPLY_TOKENS = 96
"""The most tokens of a reply in a benchmark."""


class BenchScreen(RunScreen):
    DEFAULT_CSS = """
    BenchScreen > Vertical { width: 84; max-width: 100%; max-height: 100%; padding: 1 2; }
    BenchScreen #progress { height: 3; }
    BenchScreen #table { height: 9; margin: 1 0; }
    BenchScreen #outcome { height: 2; }
    BenchScreen.-w60 > Vertical, BenchScreen.-w80 > Vertical { padding: 1; }
    BenchScreen.-h0 > Vertical, BenchScreen.-h8 > Vertical { padding: 0 1; }
    BenchScreen.-h0 #table, BenchScreen.-h8 #table { height: 5; margin: 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("escape,q", "leave", "stop and keep the table; then leave", "bench.leave"),
        bind("r", "again", "run it again", "bench.again"),
        bind("c", "copy", "copy the table", "bench.copy"),
    ]

    def __init__(self, context: AppServices, amount: str) -> None:
        """Measure the settings in force against plain decoding on a few questions, or for some seconds.

        Raises UsageError if the engine is not free, `amount` is neither, or the settings are plain decoding.
        """
        self._views = (
            LinesView(lambda w, h: progress_lines(self.series, *self.about, w), id="progress"),
            LinesView(lambda w, h: _fitting(table_lines(self.series, w), h), id="table"),
            LinesView(lambda w, h: outcome_lines(self.series, w), id="outcome"),
        )
        super().__init__(context, *self._views)
        count, seconds = _parse_amount(amount)
        questions = list(context.setup.questions())[:count]
        if not questions:
            raise UsageError("no questions come with this installation")
        self._begin(questions, race_seed(context.chat.engine.settings), seconds)

    def on_mount(self) -> None:
        self.show()

    def show(self) -> None:
        if not self.is_mounted:
            return
        for view in self._views:
            view.repaint()
        key, ended = self.context.app.key_of, self.series.ended
        leave = key("bench.leave").split(",")[0]
        again = f" · {key('bench.again')} again · {key('bench.copy')} {'copied' if self.copied else 'copies'}"
        self.entitle("bench", f"{leave} leaves{again}" if ended else f"{leave} stops")

    def _begin(self, questions: Sequence[BenchQuestion], seed: int, seconds: float | None) -> None:
        chat, ids, clock = self.context.chat, self.context.race_ids, self.context.setup.clock
        changed = {**changes(chat), "max_tokens": min(self.about[2].get("max_tokens", 0), _REPLY_TOKENS)}
        self.series = RaceSeries(questions, seed, ids, changed, clock, seconds)
        self.begin_run(self.series)

    def action_leave(self) -> None:
        if self.stop_run():
            self.show()
        else:
            self.leave()

    @property
    def ended(self) -> bool:
        return self.series.ended

    def begin_again(self) -> None:
        self._begin(self.series.questions, self.series.seed, self.series.seconds)

    def result(self) -> str:
        return series_text(self.series, *self.about) if self.series.ended else ""


def _fitting(lines: list[ScreenLine], height: int) -> list[ScreenLine]:
    """As many lines as fit; the last one, the total, is always kept."""
    return lines if len(lines) <= height else [*lines[: height - 1], lines[-1]]


def _parse_amount(argument: str) -> tuple[int, float | None]:
    """How many questions and for how many seconds: `12` is 12 questions, `60s` a minute, nothing the default."""
    if not argument:
        return _QUESTIONS, None
    number = argument.removesuffix("s")
    if not number.isascii() or not number.isdigit() or int(number) == 0:
        raise UsageError(f"{argument!r} is neither a number of questions, such as 12, nor a time, such as 60s")
    return (sys.maxsize, float(number)) if number != argument else (int(number), None)
