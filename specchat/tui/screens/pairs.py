"""Choose what to talk to."""

from __future__ import annotations

from typing import ClassVar

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from specchat.tui import format
from specchat.tui.pairs import PairInfo


class PairsScreen(ModalScreen[str | None]):
    """Every pair with its state and size; gives back the chosen one's name."""

    DEFAULT_CSS = """
    PairsScreen { align: center middle; background: $background 60%; }
    PairsScreen > Vertical {
        width: 84; max-width: 96%; height: auto; max-height: 90%; padding: 0 1;
        border: round $primary; border-title-color: $primary; border-subtitle-color: $quiet-color;
        background: $surface;
    }
    PairsScreen OptionList {
        height: auto; max-height: 100%; border: none; background: transparent; padding: 0;
        &:focus { border: none; background-tint: transparent; }
        & > .option-list--option-highlighted { background: $panel; color: $foreground; text-style: none; }
        &:focus > .option-list--option-highlighted { background: $primary 25%; color: $foreground; text-style: none; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "close", show=False, id="pairs.close"),
        Binding("j", "app.simulate_key('down')", "next", show=False, id="pairs.next"),
        Binding("k", "app.simulate_key('up')", "previous", show=False, id="pairs.previous"),
    ]

    def __init__(self, pairs: list[PairInfo], current: str) -> None:
        super().__init__()
        self._pairs = pairs
        self._current = current

    def compose(self) -> ComposeResult:
        """One entry per pair."""
        with Vertical() as box:
            box.border_title = "pairs"
            box.border_subtitle = "Enter loads · Esc closes"
            if self._pairs:
                yield OptionList(*(Option(self._entry(pair), id=pair.name) for pair in self._pairs))
            else:
                yield Static("no pairs are known", markup=False)

    def on_mount(self) -> None:
        """Begin at the pair in use."""
        names = [pair.name for pair in self._pairs]
        if self._current in names:
            self.query_one(OptionList).highlighted = names.index(self._current)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Give back the chosen name."""
        self.dismiss(event.option_id)

    def _entry(self, pair: PairInfo) -> Content:
        width = max(12, max(cell_len(p.name) for p in self._pairs) + 2)
        mark, style = {"ready": ("●", "$success"), "partial": ("◐", "$warning"), "missing": ("○", "$quiet-color")}[
            pair.state
        ]
        download = f" · {format.size(pair.download_bytes)} to fetch" if pair.download_bytes else ""
        state = {"ready": "ready", "partial": "partly here", "missing": "not here yet"}[pair.state] + download
        in_use = "  (in use)" if pair.name == self._current else ""
        models = pair.target + (f" ← {pair.draft}" if pair.draft else " · no draft model")
        about = " · ".join(part for part in (pair.summary, pair.notes) if part)
        return Content.assemble(
            (mark + " ", style), (pair.name.ljust(width), "bold"), (state + in_use, style),
            (f"\n  {models}", "$foreground 80%"), (f"\n  {about}" if about else "", "$quiet-color"), "\n",
        )  # fmt: skip
