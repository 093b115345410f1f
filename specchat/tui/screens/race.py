"""The screen of a race: plain decoding and speculation side by side; and what it shares with that of a benchmark."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container, VerticalScroll
from textual.events import Resize
from textual.widget import Widget

from specchat.engine.client.race import RACE_DEFAULTS, Race, Side, race_seed, refuse_plain
from specchat.engine.protocol.commands import Command, Message
from specchat.engine.protocol.events import Event, RoundDone
from specchat.engine.protocol.text import visible
from specchat.errors import UsageError
from specchat.settings import GREEDY
from specchat.tui.screens.page import Page
from specchat.tui.services.context import AppServices
from specchat.tui.state.chat import Chat
from specchat.tui.state.race_lines import NAMES, bar_lines, head_lines, keys_line, outcome_text, status_lines
from specchat.tui.state.races import Playback, RaceSeries
from specchat.tui.text.cells import ScreenLine
from specchat.tui.text.key_names import bind
from specchat.tui.widgets.painted_lines import LinesView
from specchat.tui.widgets.tinted_text import TintedText
from specchat.tui.widgets.tree_panel import TreePanel


class RunScreen(Page[None]):
    """Sends a run's commands to the engine and gives it the answers. The chat and its settings stay as they are."""

    run: Race | RaceSeries
    copied = False

    def __init__(self, context: AppServices, *views: Widget) -> None:
        """Raises UsageError if the engine is not free, or the settings are plain decoding."""
        require_engine(context)
        self.refuse_settings(context.chat.engine.settings)
        super().__init__(*views)
        self.context = context
        ready, settings = context.chat.engine.ready, {**context.chat.engine.settings, **changes(context.chat)}
        self.about = (ready.pair if ready else "", ready.dtype if ready else "", settings)
        """The pair in use, its number format, and the settings that hold for the run."""

    def refuse_settings(self, settings: Mapping[str, Any]) -> None:
        """Raises UsageError if a run says nothing with these settings."""
        refuse_plain(settings)

    @abstractmethod
    def show(self) -> None:
        """Draw the state at this moment."""

    @property
    @abstractmethod
    def ended(self) -> bool:
        """Whether the run may begin again."""

    @abstractmethod
    def begin_again(self) -> None:
        """Run the same once more."""

    @abstractmethod
    def result(self) -> str:
        """The outcome as lines to copy; empty before there is one."""

    def begin_run(self, run: Race | RaceSeries) -> None:
        """The engine belongs to this run from now on."""
        self.run, self.context.chat.background.racing = run, True
        self.context.session.send(run.begin())

    def take(self, events: Sequence[Event]) -> None:
        for event in events:
            self._send_if_any(self.run.hear(event))
        self.show()

    def stop_run(self) -> bool:
        """Stop what runs; False if nothing does."""
        return self._send_if_any(self.run.stop())

    def _send_if_any(self, command: Command | None) -> bool:
        if command is not None:
            self.context.session.send(command)
        return command is not None

    def on_unmount(self) -> None:
        """The engine is free again, whoever closed the screen."""
        self.context.chat.background.racing = False

    def action_again(self) -> None:
        if self.ended and self.context.chat.can_generate:
            self.copied = False
            self.begin_again()
            self.show()

    def action_copy(self) -> None:
        if text := self.result():
            self.app.copy_to_clipboard(text)
            self.copied = True
            self.show()

    def leave(self) -> None:
        self.stop_run()
        self.context.chat.background.racing = False
        while (top := self.app.screen) is not self:  # help, or a list of commands
            top.dismiss(None)
        self.dismiss(None)


def require_engine(context: AppServices) -> None:
    """Raises UsageError if the engine is not free for a run, or there is none."""
    if context.session.player is not None:
        raise UsageError("a recording cannot race: there is no engine")
    context.session.require_free()


def changes(chat: Chat) -> dict[str, Any]:
    """Settings of a race that differ from the chat's: greedy, unless the user asked for a temperature."""
    asked, settings = chat.engine.wanted, chat.engine.settings
    kept = GREEDY.keys() if "temperature" in asked else asked.keys()
    changed = {name: value for name, value in RACE_DEFAULTS.items() if name not in kept}
    if "max_tokens" in changed:
        changed["max_tokens"] = min(settings.get("max_tokens", 0), changed["max_tokens"])
    return {name: value for name, value in changed.items() if settings.get(name, value) != value}


class RaceColumn(VerticalScroll):
    """Appends the rounds that are new; starts again where there are fewer than before."""

    DEFAULT_CSS = """
    RaceColumn {
        width: 1fr; height: 1fr; padding: 0 1; border: round $border; scrollbar-size-vertical: 1;
        border-title-color: $foreground 80%;
    }
    RaceColumn.-running { border: round $primary; border-title-color: $primary; }
    RaceColumn:focus { border-title-style: bold; }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._words = TintedText()
        self._shown = 0
        self._tail = ""
        self._title = ""

    def compose(self) -> ComposeResult:
        yield self._words

    def watch_virtual_size(self) -> None:
        self._follow()

    def on_resize(self) -> None:
        self._follow()

    @property
    def text(self) -> str:
        return self._words.text

    def show(self, title: str, rounds: Sequence[RoundDone], tail: str, *, running: bool) -> None:
        if len(rounds) < self._shown or (self._tail and not tail):
            self._words.set([])
            self._shown, self._tail = 0, ""
        fresh = [(visible(piece.text), piece.origin) for round in rounds[self._shown :] for piece in round.pieces]
        self._shown = len(rounds)
        if tail and not self._tail:
            fresh.append((visible(tail), "target"))
            self._tail = tail
        if fresh:
            self._words.add(fresh)
        if title != self._title:
            self.border_title = self._title = title
        self.set_class(running, "-running")

    def _follow(self) -> None:
        """Follow the end of text that overflows; text that fits begins at the top."""
        overflows = self.max_scroll_y > 0
        if overflows != self.is_anchored:
            self.anchor(overflows)
            if not overflows:
                self.scroll_to(y=0, animate=False, immediate=True, force=True)


_REFRESH_S = 1 / 10

TREE_FROM_COLUMNS, TREE_FROM_LINES = 112, 20
"""From this size on each column keeps 30 cells of text beside the tree."""


class RaceScreen(RunScreen):
    """Shows a race while it runs and is played back. A timer redraws it only while something changes."""

    DEFAULT_CSS = """
    RaceScreen { align: left top; background: $background; }
    RaceScreen #head { height: 2; margin: 0 1; }
    RaceScreen #columns { height: 1fr; layout: horizontal; }
    RaceScreen #race-tree { width: 44; }
    RaceScreen #bars { height: 2; margin: 0 1; }
    RaceScreen #outcome { height: 1; margin: 0 1; }
    RaceScreen #keys { height: 1; margin: 0 1; }
    RaceScreen.-w0 #columns, RaceScreen.-w60 #columns { layout: vertical; }
    RaceScreen.-h0 #head, RaceScreen.-h8 #head, RaceScreen.-h0 #keys, RaceScreen.-h8 #keys { display: none; }
    RaceScreen.-h0 RaceColumn, RaceScreen.-h8 RaceColumn { border: none; border-top: solid $border; }
    """
    AUTO_FOCUS = ""
    playback: Playback
    with_tree = True
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("escape,q", "leave", "stop and leave", "race.leave"),
        bind("r", "again", "run it again", "race.again"),
        bind("end", "skip", "show the end of what is played again", "race.end"),
        bind("c", "copy", "copy the result", "race.copy"),
    ]

    def __init__(self, context: AppServices, prompt: str) -> None:
        """Race on the last question of the chat, or on a prompt that would follow the chat.

        Raises UsageError if the engine is not free, there is no question, or the settings are plain decoding.
        """
        super().__init__(context)
        self._begin(question(context.chat, prompt), race_seed(context.chat.engine.settings))
        self._columns = {side: RaceColumn(id=side) for side in self.playback.race.heats}
        self._tree = TreePanel(id="race-tree")
        self._head = LinesView(lambda w, h: self.head(w), id="head")
        self._outcome = LinesView(lambda w, h: status_lines(self.playback, self.about[1], w, h), id="outcome")
        self._below = (
            LinesView(lambda w, h: bar_lines(self.playback, w), id="bars"),
            self._outcome,
            LinesView(lambda w, h: [keys_line("copied" if self.copied else "", self._hint(), w)], id="keys"),
        )

    def compose(self) -> ComposeResult:
        first, second = self._columns.values()
        yield from (self._head, Container(first, self._tree, second, id="columns"), *self._below)

    def head(self, width: int) -> list[ScreenLine]:
        """The question, and what is compared."""
        assert isinstance(self.run, Race), "this screen runs one race"
        return head_lines(self.run, *self.about, width)

    def title_of(self, side: Side) -> str:
        return NAMES[side]

    def on_mount(self) -> None:
        self._refresh_timer = self.set_interval(_REFRESH_S, self.show)
        self.show()

    def on_resize(self, event: Resize) -> None:
        roomy = event.size.width >= TREE_FROM_COLUMNS and event.size.height >= TREE_FROM_LINES
        self._tree.display = self.with_tree and roomy
        self.show()

    def show(self) -> None:
        self.playback.heard()
        if not self.is_mounted:
            return
        playback = self.playback
        moving = playback.moving  # asked first: the clock goes on while the parts below are drawn
        for side, column in self._columns.items():
            heat = playback.race.heats[side]
            tail = heat.finished.tail if heat.finished is not None and playback.done(side) else ""
            rounds = heat.rounds[: playback.shown_rounds(side)]
            column.show(self.title_of(side), rounds, tail, running=playback.race.running == side)
            if side == "speculative" and self._tree.display:
                self._tree.show(rounds, None, frozen=playback.finished, empty="the trees of speculation")
        width, height = self.size
        lines = status_lines(self.playback, self.about[1], max(8, width - 2), max(2, height // 4))
        if self._outcome.styles.height is None or self._outcome.styles.height.value != len(lines):
            self._outcome.styles.height = len(lines)
        for view in (self._head, *self._below):
            view.repaint()
        if not moving:
            self._refresh_timer.pause()

    def _begin(self, messages: Sequence[Message], seed: int) -> None:
        race = Race(messages, seed, self.context.race_ids, changes(self.context.chat))
        self.playback = Playback(race, self.context.setup.clock)
        self.begin_run(race)

    def action_leave(self) -> None:
        self.leave()

    @property
    def ended(self) -> bool:
        return self.playback.race.ended

    def begin_again(self) -> None:
        self._refresh_timer.resume()
        self._begin(self.playback.race.messages, self.playback.race.seed)

    def action_skip(self) -> None:
        self.playback.skip()
        self.show()

    def result(self) -> str:
        return outcome_text(self.playback, *self.about[:2]) if self.playback.race.phase == "over" else ""

    def _hint(self) -> str:
        playback, key = self.playback, self.context.app.key_of
        keys = [(key("race.leave").split(",")[0], "leaves")]
        if playback.race.ended:
            keys.append((key("race.again"), "again"))
        if playback.race.running is None and playback.moving and playback.race.phase not in ("loading", "warming"):
            keys.append((key("race.end"), "shows the end"))
        if playback.race.phase == "over":
            keys.append((key("race.copy"), "copies"))
        return " · ".join(f"{name} {does}" for name, does in keys if name)


def question(chat: Chat, prompt: str) -> list[Message]:
    """The chat up to its last question, or with this prompt behind it; UsageError where there is neither."""
    messages = chat.messages()
    if prompt:
        return [*messages, Message("user", prompt)]
    while messages and messages[-1].role != "user":
        messages.pop()
    if not messages:
        raise UsageError("there is no question to race on yet: /race PROMPT gives one")
    return messages
