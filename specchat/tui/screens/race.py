"""Plain decoding and speculation side by side, with both times and what they prove."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.message import Message
from textual.screen import ModalScreen

from specchat.engine.near.race import SIDES, Side
from specchat.tui.draw.race_rows import (
    NAMES,
    board_rows,
    head_rows,
    keys_row,
    outcome_text,
    status_rows,
)
from specchat.tui.ports import KeyNames
from specchat.tui.state.race_playback import Contest, RacePlayback
from specchat.tui.widgets.race_column import RaceColumn
from specchat.tui.widgets.rows_view import RowsView

_BEAT_S = 1 / 10


class RaceScreen(ModalScreen[None]):
    """Shows a course; time alone moves it only while there is something to be seen."""

    DEFAULT_CSS = """
    RaceScreen { background: $background; }
    RaceScreen #head { height: 2; margin: 0 1; }
    RaceScreen #lanes { height: 1fr; layout: horizontal; }
    RaceScreen #board { height: 2; margin: 0 1; }
    RaceScreen #outcome { height: 1; margin: 0 1; }
    RaceScreen #keys { height: 1; margin: 0 1; }
    RaceScreen.-w0 #lanes, RaceScreen.-w60 #lanes { layout: vertical; }
    RaceScreen.-h0 #head, RaceScreen.-h8 #head, RaceScreen.-h0 #keys, RaceScreen.-h8 #keys { display: none; }
    RaceScreen.-h0 RaceColumn, RaceScreen.-h8 RaceColumn { border: none; border-top: solid $border; }
    """
    AUTO_FOCUS = ""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "leave", "stop and leave", show=False, id="race.leave"),
        Binding("r", "again", "run it again", show=False, id="race.again"),
        Binding("end", "skip", "show the end of what is played again", show=False, id="race.end"),
        Binding("c", "copy", "copy the result", show=False, id="race.copy"),
    ]

    class LeaveAsked(Message):
        """The user wants to stop what runs and go back to the chat."""

    class AgainAsked(Message):
        """The user wants the same race once more."""

    def __init__(self, contest: Contest, key_of: KeyNames, course: RacePlayback) -> None:
        super().__init__()
        self.meeting = course
        self._contest, self._key_of = contest, key_of
        self._copied = False
        self._lanes: dict[Side, RaceColumn] = {side: RaceColumn(id=side) for side in SIDES}
        pair, dtype, settings = contest.pair, contest.dtype, contest.settings
        self._head = RowsView(lambda w, h: head_rows(self.meeting, pair, dtype, settings, w), id="head")
        self._board = RowsView(lambda w, h: board_rows(self.meeting, contest.longest, w), id="board")
        self._outcome = RowsView(lambda w, h: status_rows(self.meeting, dtype, w, h), id="outcome")
        self._keys = RowsView(lambda w, h: [keys_row("copied" if self._copied else "", self._hint(), w)], id="keys")

    def compose(self) -> ComposeResult:
        """Question and settings, two columns, two bars, what came of it, keys."""
        yield self._head
        with Container(id="lanes"):
            yield from self._lanes.values()
        yield self._board
        yield self._outcome
        yield self._keys

    def on_mount(self) -> None:
        """Move with the clock."""
        self._beat = self.set_interval(_BEAT_S, self.show)
        self.show()

    def show(self) -> None:
        """Draw what is to be seen now."""
        if not self.is_mounted:
            return
        course = self.meeting
        for side, lane in self._lanes.items():
            heat = course.race.heats[side]
            tail = heat.finished.tail if heat.finished is not None and course.done(side) else ""
            running = course.race.running == side
            rounds = heat.rounds[: course.seen(side)]
            lane.show(NAMES[side], rounds, tail, running=running)
        self._make_room()
        for view in (self._head, self._board, self._outcome, self._keys):
            view.repaint()
        if not course.moving:
            self._beat.pause()

    def begin(self, course: RacePlayback) -> None:
        """Show another race."""
        self.meeting, self._copied = course, False
        self._beat.resume()
        self.show()

    def action_leave(self) -> None:
        """Stop what runs, and back to the chat."""
        self.post_message(self.LeaveAsked())

    def action_again(self) -> None:
        """The same race once more, after this one."""
        if self.meeting.race.ended:
            self.post_message(self.AgainAsked())

    def action_skip(self) -> None:
        """Do not wait for what is only played again."""
        self.meeting.skip()
        self.show()

    def action_copy(self) -> None:
        """The result as text."""
        if self.meeting.race.phase == "over":
            self.app.copy_to_clipboard(outcome_text(self.meeting, self._contest.pair, self._contest.dtype))
            self._copied = True
            self.show()

    def _make_room(self) -> None:
        """As many lines for the outcome as it takes, and the screen has."""
        size = self.size
        lines = status_rows(self.meeting, self._contest.dtype, max(8, size.width - 2), max(2, size.height // 4))
        if self._outcome.styles.height is None or self._outcome.styles.height.value != len(lines):
            self._outcome.styles.height = len(lines)

    def _hint(self) -> str:
        course, key = self.meeting, self._key_of
        keys = [(key("race.leave").split(",")[0], "leaves")]
        if course.race.ended:
            keys.append((key("race.again"), "again"))
        if course.race.running is None and course.moving and course.race.phase != "warming":
            keys.append((key("race.end"), "shows the end"))
        if course.race.phase == "over":
            keys.append((key("race.copy"), "copies"))
        return " · ".join(f"{name} {does}" for name, does in keys if name)
