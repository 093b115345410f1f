"""Every pair on one line, the chosen one explained below."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from specchat.tui.draw.pair_rows import Shelf, pair_rows
from specchat.tui.state.pair_info import PairInfo
from specchat.tui.text.cells import Row
from specchat.tui.text.key_names import hint
from specchat.tui.widgets.painted_rows import PaintedRows


class PairList(PaintedRows, can_focus=True):
    """Chooses among pairs; what to do with the chosen one is the screen's business."""

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
        """The user wants something of the chosen pair: `choose`, `stop`, `start` or `forget`."""

        def __init__(self, what: str, pair: PairInfo) -> None:
            super().__init__()
            self.what = what
            self.pair = pair

    def __init__(self) -> None:
        super().__init__()
        self.shelf = Shelf()
        self._at = 0
        self._top = 0

    @property
    def chosen(self) -> PairInfo | None:
        """The chosen pair."""
        return self.shelf.pairs[self._at] if self.shelf.pairs else None

    def show(self, shelf: Shelf) -> None:
        """Show these pairs; the chosen one stays chosen by its name."""
        before = self.chosen
        self.shelf = shelf
        names = [pair.name for pair in shelf.pairs]
        name = before.name if before else shelf.in_use
        self._at = names.index(name) if name in names else max(0, min(self._at, len(names) - 1))
        self.repaint()

    def on_key(self, event: events.Key) -> None:
        """While something is asked, every key is an answer."""
        if self.shelf.asking:
            event.stop()
            event.prevent_default()
            if event.key == "y" and (pair := self.chosen):
                self.post_message(self.Asked("forget", pair))
            self.show(replace(self.shelf, asking=""))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """An answer is no command."""
        return not self.shelf.asking

    def action_move(self, step: int) -> None:
        """Choose another one."""
        self._choose(self._at + step)

    def action_edge(self, index: int) -> None:
        """Choose the first or the last one."""
        self._choose(0 if index == 0 else len(self.shelf.pairs) - 1)

    def action_ask(self, what: str) -> None:
        """Say what is wanted of the chosen pair."""
        if pair := self.chosen:
            self.post_message(self.Asked(what, pair))

    def action_forget(self) -> None:
        """Ask whether a pair of the user's own is to be forgotten."""
        if pair := self.chosen:
            said = "" if pair.yours else f"{pair.name} came with specchat and stays"
            self.show(replace(self.shelf, asking=pair.name if pair.yours else "", said=said))

    def on_click(self, event: events.Click) -> None:
        """Choose the pair that was clicked; twice: as Enter does."""
        index = event.y + self._top
        if index < len(self.shelf.pairs):
            again = index == self._at and event.chain > 1
            self._choose(index)
            if again:
                self.action_ask("choose")

    def paint(self, width: int, height: int) -> list[Row]:
        """The pairs, then the chosen one in words."""
        rows, self._top = pair_rows(self.shelf, self._at, self._top, width, height, partial(hint, self))
        return rows

    def _choose(self, index: int) -> None:
        self._at = max(0, min(len(self.shelf.pairs) - 1, index))
        self.shelf = replace(self.shelf, said="")
        self.repaint()
