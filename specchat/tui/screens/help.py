"""All keys and commands on one page."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.events import Resize
from textual.screen import ModalScreen

from specchat.tui.text.key_names import hint
from specchat.tui.text.wrap import wrap
from specchat.tui.widgets.tinted_text import TintedText

KEY_COLUMNS = 26
"""The most columns for what to press or type; what is longer has a line of its own."""


class HelpScreen(ModalScreen[None]):
    """Sections of (what to press or type, what it does)."""

    DEFAULT_CSS = """
    HelpScreen { align: center middle; background: $background 60%; }
    HelpScreen > VerticalScroll {
        width: 80; max-width: 96%; height: auto; max-height: 90%; padding: 0 2; border: round $primary;
        border-title-color: $primary; border-subtitle-color: $quiet-color; background: $surface;
        scrollbar-size-vertical: 1;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,f1", "dismiss(None)", "close", show=False, id="help.close"),
    ]

    def __init__(self, sections: list[tuple[str, list[tuple[str, str]]]]) -> None:
        super().__init__()
        self._sections = sections

    def compose(self) -> ComposeResult:
        """The page."""
        with VerticalScroll() as box:
            box.border_title = "help"
            box.border_subtitle = hint(self, "help.close", "closes")
            yield _Page(self._sections)


class _Page(TintedText):
    """The sections, in two columns of the width that there is."""

    def __init__(self, sections: list[tuple[str, list[tuple[str, str]]]]) -> None:
        super().__init__()
        self._sections = sections

    def on_resize(self, event: Resize) -> None:
        """Write the columns anew."""
        self.set(self._runs(event.size.width))

    def _runs(self, width: int) -> list[tuple[str, str]]:
        column = max(len(left) for _, entries in self._sections for left, _ in entries) + 2
        column = min(column, KEY_COLUMNS, width // 2)
        runs: list[tuple[str, str]] = []
        for title, entries in self._sections:
            runs.append((f"\n{title}\n", "strong"))
            for left, right in entries:
                beside = "\n" + " " * (column + 2)
                said = beside.join(right[a:b].strip() for a, b in wrap(right, width - column - 2))
                own_line = beside if len(left) > column - 2 else ""
                runs += [(f"  {left:<{column}}", "accepted"), (f"{own_line}{said}\n", "text")]
        return runs
