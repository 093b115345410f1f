"""The screen of a short benchmark: the settings in force against plain decoding."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.screen import ModalScreen

from specchat.tui.ports import KeyNames
from specchat.tui.state.race_lines import outcome_lines, progress_lines, series_text, table_lines
from specchat.tui.state.races import RaceSeries, RaceSetup
from specchat.tui.text.cells import ScreenLine
from specchat.tui.widgets.painted_lines import LinesView


class BenchScreen(ModalScreen[None]):
    """Progress, a table by category, and whether the texts agree."""

    DEFAULT_CSS = """
    BenchScreen { align: center middle; background: $background 60%; }
    BenchScreen > Vertical {
        width: 84; max-width: 100%; height: auto; max-height: 100%; padding: 1 2; border: round $primary;
        border-title-color: $primary; border-subtitle-color: $quiet-color; background: $surface;
    }
    BenchScreen #progress { height: 3; }
    BenchScreen #table { height: 9; margin: 1 0; }
    BenchScreen #outcome { height: 2; }
    BenchScreen.-w60 > Vertical, BenchScreen.-w80 > Vertical { padding: 1; }
    BenchScreen.-h0 > Vertical, BenchScreen.-h8 > Vertical { padding: 0 1; }
    BenchScreen.-h0 #table, BenchScreen.-h8 #table { height: 5; margin: 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "leave", "stop and keep the table; then leave", show=False, id="bench.leave"),
        Binding("r", "again", "run it again", show=False, id="bench.again"),
        Binding("c", "copy", "copy the table", show=False, id="bench.copy"),
    ]

    class StopAsked(Message):
        """The user wants to stop what runs; where nothing runs, to leave."""

    class AgainAsked(Message):
        """The user wants the same run once more."""

    def __init__(self, setup: RaceSetup, key_of: KeyNames, series: RaceSeries) -> None:
        super().__init__()
        self.series = series
        self._key_of = key_of
        self._copied = False
        about = (setup.pair, setup.dtype, setup.settings)
        self._about = about
        self._box = Vertical()
        self._views = (
            LinesView(lambda w, h: progress_lines(self.series, *about, w), id="progress"),
            LinesView(lambda w, h: _fitting(table_lines(self.series, w), h), id="table"),
            LinesView(lambda w, h: outcome_lines(self.series, w), id="outcome"),
        )

    def compose(self) -> ComposeResult:
        """One box."""
        with self._box:
            yield from self._views

    def on_mount(self) -> None:
        """Set the title and draw."""
        self._box.border_title = "bench"
        self.show()

    def show(self) -> None:
        """Draw the results so far."""
        if not self.is_mounted:
            return
        for view in self._views:
            view.repaint()
        key, ended = self._key_of, self.series.ended
        leave = key("bench.leave").split(",")[0]
        again = f" · {key('bench.again')} again · {key('bench.copy')} {'copied' if self._copied else 'copies'}"
        self._box.border_subtitle = f"{leave} leaves{again}" if ended else f"{leave} stops"

    def begin(self, series: RaceSeries) -> None:
        """Show another run."""
        self.series, self._copied = series, False
        self.show()

    def action_leave(self) -> None:
        """Stop what runs and keep the table; else back to the chat."""
        self.post_message(self.StopAsked())

    def action_again(self) -> None:
        """Run the same benchmark again."""
        if self.series.ended:
            self.post_message(self.AgainAsked())

    def action_copy(self) -> None:
        """Copy the table as text."""
        if self.series.ended:
            self.app.copy_to_clipboard(series_text(self.series, *self._about))
            self._copied = True
            self.show()


def _fitting(lines: list[ScreenLine], height: int) -> list[ScreenLine]:
    """As many lines as fit; the last one, the total, is always kept."""
    return lines if len(lines) <= height else [*lines[: height - 1], lines[-1]]
