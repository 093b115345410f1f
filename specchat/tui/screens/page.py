"""The bases of pages that lie over the chat in a box of their own."""

from __future__ import annotations

from typing import TypeVar

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.events import Resize
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Input

from specchat.tui.text.cells import ScreenLine
from specchat.tui.widgets.tinted_text import TintedText

Result = TypeVar("Result")


class Page(ModalScreen[Result]):
    """These views in a box, with a title and the keys in its border."""

    DEFAULT_CSS = """
    Page { align: center middle; background: $background 60%; }
    Page > Vertical, Page > VerticalScroll {
        max-width: 96%; height: auto; max-height: 96%; padding: 0 1; border: round $primary;
        border-title-color: $primary; border-subtitle-color: $quiet-color; background: $surface;
    }
    """

    def __init__(self, *views: Widget, scrolls: bool = False) -> None:
        super().__init__()
        self.box = VerticalScroll(*views) if scrolls else Vertical(*views)

    def compose(self) -> ComposeResult:
        yield self.box

    def entitle(self, title: str, keys: str = "") -> None:
        self.box.border_title, self.box.border_subtitle = title, keys

    def on_resize(self, event: Resize) -> None:
        self.call_after_refresh(self.redraw)

    def redraw(self) -> None:
        """Draw what depends on the size of the page."""


class FormPage(Page[Result]):
    """A page with inputs, and a text below them, `#said`."""

    def text_of(self, id: str) -> str:
        return self.query_one(f"#{id}", Input).value.strip()

    def tell(self, runs: ScreenLine) -> None:
        self.query_one("#said", TintedText).set(runs)
