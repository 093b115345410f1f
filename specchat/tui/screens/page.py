"""The base of pages that lie over the chat in a box of their own."""

from __future__ import annotations

from typing import TypeVar

from textual.screen import ModalScreen

Result = TypeVar("Result")


class Page(ModalScreen[Result]):
    DEFAULT_CSS = """
    Page { align: center middle; background: $background 60%; }
    Page > Vertical, Page > VerticalScroll {
        max-width: 96%; height: auto; max-height: 96%; padding: 0 1; border: round $primary;
        border-title-color: $primary; border-subtitle-color: $quiet-color; background: $surface;
    }
    """
