"""All figures on a page of their own, where there is no room for them beside the chat."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen

from specchat.tui.state.stats_lines import StatsFacts, stats_lines
from specchat.tui.text.key_names import hint
from specchat.tui.widgets.painted_lines import LinesView

_REFRESH_S = 1 / 3


class FiguresScreen(ModalScreen[bool]):
    """Every line of the figures, as they are now; scrolls where they do not fit. True: closed to go on."""

    DEFAULT_CSS = """
    FiguresScreen { align: center middle; background: $background 60%; }
    FiguresScreen > VerticalScroll {
        width: 64; max-width: 96%; height: auto; max-height: 96%; padding: 0 1; border: round $primary;
        border-title-color: $primary; border-subtitle-color: $quiet-color; background: $surface;
        scrollbar-size-vertical: 1; scrollbar-gutter: stable;
    }
    FiguresScreen LinesView { height: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss(False)", "close", show=False, id="figures.close"),
        Binding("f3", "dismiss(True)", "close, and hide the figures beside the chat", show=False, id="figures.hide"),
    ]

    def __init__(self, facts: Callable[[], StatsFacts]) -> None:
        super().__init__()
        self._facts = facts
        self._lines = LinesView(lambda width, _: stats_lines(self._facts(), width, sys.maxsize))

    def compose(self) -> ComposeResult:
        """A box that scrolls."""
        with VerticalScroll() as box:
            box.border_title = "speed"
            box.border_subtitle = hint(self, "figures.close", "closes")
            yield self._lines

    def on_mount(self) -> None:
        """Draw now, and again while a reply is written."""
        self.query_one(VerticalScroll).focus()
        self.set_interval(_REFRESH_S, self._show)

    def on_resize(self) -> None:
        """The width decides how many lines there are."""
        self.call_after_refresh(self._show)

    def _show(self) -> None:
        width = self._lines.size.width
        self._lines.styles.height = max(1, len(stats_lines(self._facts(), width, sys.maxsize)))
        self._lines.repaint()
