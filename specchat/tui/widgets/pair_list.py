"""The list of pairs, one line each, with details of the chosen one below."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from specchat.tui.draw.pair_lines import PairListState, pair_lines
from specchat.tui.state.pair_info import PairInfo
from specchat.tui.text.cells import ScreenLine
from specchat.tui.text.key_names import hint
from specchat.tui.widgets.painted_lines import PaintedLines


class PairList(PaintedLines, can_focus=True):
    """Lets the user choose a pair and an action; the screen carries it out."""

    DEFAULT_CSS = """
    PairList { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "the pair above", show=False, id="pairs.up"),
        Binding("down,j", "move(1)", "the pair below", show=False, id="pairs.down"),
        Binding("home", "edge(0)", "the first pair", show=False, id="pairs.first"),
        Binding("end", "edge(-1)", "the last pair", show=False, id="pairs.last"),
        Binding("enter", "ask('choose')", "load it, or fetch it first", show=False, id="pairs.choose"),
        Binding("x", "ask('stop')", "stop fetching it", show=False, id="pairs.stop"),
        Binding("s", "ask('start')", "begin with it from now on", show=False, id="pairs.start"),
        Binding("d", "forget", "forget a pair of your own", show=False, id="pairs.forget"),
    ]

    class Asked(Message):
        """The user requests an action on the chosen pair: `choose`, `stop`, `start` or `forget`."""

        def __init__(self, what: str, pair: PairInfo) -> None:
            super().__init__()
            self.what = what
            self.pair = pair

    def __init__(self) -> None:
        super().__init__()
        self.list_state = PairListState()
        self._at = 0
        self._top = 0

    @property
    def chosen(self) -> PairInfo | None:
        """The chosen pair."""
        return self.list_state.pairs[self._at] if self.list_state.pairs else None

    def show(self, list_state: PairListState) -> None:
        """Show these pairs; the chosen one stays chosen by its name."""
        before = self.chosen
        self.list_state = list_state
        names = [pair.name for pair in list_state.pairs]
        name = before.name if before else list_state.chosen if list_state.chosen in names else list_state.in_use
        self._at = names.index(name) if name in names else max(0, min(self._at, len(names) - 1))
        self.repaint()

    def choose(self, name: str) -> None:
        """Choose the pair of this name, if it is listed."""
        names = [pair.name for pair in self.list_state.pairs]
        if name in names:
            self._choose(names.index(name))

    def on_key(self, event: events.Key) -> None:
        """While a confirmation is open, every key answers it."""
        if self.list_state.asking:
            event.stop()
            event.prevent_default()
            if event.key == "y" and (pair := self.chosen):
                self.post_message(self.Asked("forget", pair))
            self.show(replace(self.list_state, asking=""))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """No action while a confirmation is open."""
        return not self.list_state.asking

    def action_move(self, step: int) -> None:
        """Choose another one."""
        self._choose(self._at + step)

    def action_edge(self, index: int) -> None:
        """Choose the first or the last one."""
        self._choose(0 if index == 0 else len(self.list_state.pairs) - 1)

    def action_ask(self, what: str) -> None:
        """Request an action on the chosen pair."""
        if pair := self.chosen:
            self.post_message(self.Asked(what, pair))

    def action_forget(self) -> None:
        """Ask for confirmation to forget a pair of the user's own."""
        if pair := self.chosen:
            why = "was not added" if pair.state == "found" else "came with specchat and stays"
            said = "" if pair.yours else f"{pair.name} {why}"
            self.show(replace(self.list_state, asking=pair.name if pair.yours else "", said=said))

    def on_click(self, event: events.Click) -> None:
        """Choose the pair that was clicked; twice: as Enter does."""
        index = event.y + self._top
        if index < len(self.list_state.pairs):
            again = index == self._at and event.chain > 1
            self._choose(index)
            if again:
                self.action_ask("choose")

    def paint(self, width: int, height: int) -> list[ScreenLine]:
        """The pairs, then the chosen one in words."""
        lines, self._top = pair_lines(self.list_state, self._at, self._top, width, height, partial(hint, self))
        return lines

    def _choose(self, index: int) -> None:
        self._at = max(0, min(len(self.list_state.pairs) - 1, index))
        self.list_state = replace(self.list_state, said="")
        self.repaint()
