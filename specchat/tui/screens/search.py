"""The screen that searches the messages sent before."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from specchat.engine.protocol.text import visible
from specchat.store.prompt_history import History
from specchat.tui.screens.page import Page
from specchat.tui.text.cells import cut
from specchat.tui.text.key_names import bind, hint
from specchat.tui.widgets.prompt import LineInput

_SHOWN = 100


class SearchScreen(Page[str | None]):
    """A search input and the messages with all its words, newest first; its result is the chosen one."""

    DEFAULT_CSS = """
    SearchScreen { align: center bottom; }
    SearchScreen > Vertical { width: 100%; max-width: 100%; max-height: 70%; margin: 0 1 1 1; }
    SearchScreen OptionList {
        height: auto; max-height: 12; border: none; background: transparent; padding: 0; scrollbar-size-vertical: 1;
        & > .option-list--option-highlighted { background: $primary 25%; color: $foreground; text-style: none; }
    }
    SearchScreen Input { border: none; height: 1; padding: 0; background: transparent; &:focus { border: none; } }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("escape", "dismiss(None)", "close", "search.close"),
        bind("ctrl+r,up", "move(1)", "the next older one", "search.older", priority=True),
        bind("ctrl+s,down", "move(-1)", "the next newer one", "search.newer", priority=True),
    ]

    def __init__(self, history: History) -> None:
        super().__init__()
        self._history = history
        self._found: list[str] = []

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = "sent before"
            box.border_subtitle = "Enter takes it" + hint(self, "search.close", "closes", " · ")
            yield OptionList()
            yield LineInput(placeholder="type words to search", compact=True)

    def on_mount(self) -> None:
        self.query_one(OptionList).can_focus = False
        self.query_one(Input).focus()
        self._load()

    def on_input_changed(self) -> None:
        self._load()

    def on_input_submitted(self) -> None:
        at = self.query_one(OptionList).highlighted
        self.dismiss(self._found[len(self._found) - 1 - at] if at is not None else None)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._found[len(self._found) - 1 - event.option_index])

    def action_move(self, step: int) -> None:
        options = self.query_one(OptionList)
        if options.highlighted is not None:
            options.highlighted = max(0, min(options.option_count - 1, options.highlighted - step))

    def _load(self) -> None:
        words = self.query_one(Input).value
        self._found = self._history.found(words)[:_SHOWN]
        options = self.query_one(OptionList)
        options.clear_options()
        options.add_options([Option(_line(text)) for text in reversed(self._found)])
        options.highlighted = len(self._found) - 1 if self._found else None
        options.scroll_end(animate=False)
        self.query_one(Vertical).border_title = f"sent before · {len(self._found)} found" if words else "sent before"


def _line(text: str) -> Content:
    """One line: the beginning of the message, and how many lines follow."""
    more = text.count("\n")
    head = Content(cut(visible(" ".join(text[:400].split())), 200))
    return head + Content.styled(f"  +{more} lines", "$quiet-color") if more else head
