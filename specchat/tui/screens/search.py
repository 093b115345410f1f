"""The screen that searches the messages sent before."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import BindingType
from textual.content import Content
from textual.widgets import OptionList
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
    SearchScreen Input { padding: 0; background: transparent; &:focus { background: transparent; } }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("escape", "dismiss(None)", "close", "search.close"),
        bind("ctrl+r,up", "move(-1)", "the next older one", "search.older", priority=True),
        bind("ctrl+s,down", "move(1)", "the next newer one", "search.newer", priority=True),
    ]

    def __init__(self, history: History) -> None:
        self._history = history
        self._found: list[str] = []  # the newest one last
        self._options, self._words = OptionList(), LineInput(placeholder="type words to search", compact=True)
        self._options.can_focus = False
        super().__init__(self._options, self._words)

    def on_mount(self) -> None:
        self._words.focus()
        self._load()

    def on_input_changed(self) -> None:
        self._load()

    def on_input_submitted(self) -> None:
        at = self._options.highlighted
        self.dismiss(self._found[at] if at is not None else None)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._found[event.option_index])

    def action_move(self, step: int) -> None:
        if self._options.highlighted is not None:
            self._options.highlighted += step

    def _load(self) -> None:
        words = self._words.value
        self._found = self._history.found(words)[:_SHOWN][::-1]
        self._options.clear_options()
        self._options.add_options([Option(_line(text)) for text in self._found])
        self._options.highlighted = len(self._found) - 1
        self._options.scroll_end(animate=False)
        found = f" · {len(self._found)} found" if words else ""
        self.entitle(f"sent before{found}", "Enter takes it" + hint(self, "search.close", "closes", " · "))


def _line(text: str) -> Content:
    """One line: the beginning of the message, and how many lines follow."""
    more = text.count("\n")
    head = Content(cut(visible(" ".join(text[:400].split())), 200))
    return head + Content.styled(f"  +{more} lines", "$quiet-color") if more else head
