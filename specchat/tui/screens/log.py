"""The screen with the end of the engine's log, for bug reports."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen

from specchat.engine.protocol.text import visible
from specchat.tui.text.key_names import hint
from specchat.tui.widgets.tinted_text import TintedText

MOST_BYTES = 64_000


class LogScreen(ModalScreen[None]):
    """The path of the file and its last lines."""

    DEFAULT_CSS = """
    LogScreen { align: center middle; background: $background 60%; }
    LogScreen > VerticalScroll {
        width: 96%; height: auto; max-height: 90%; padding: 0 1; border: round $primary;
        border-title-color: $primary; border-subtitle-color: $quiet-color; background: $surface;
        scrollbar-size-vertical: 1;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss(None)", "close", show=False, id="log.close"),
    ]

    def __init__(self, file: Path, ended: str = "") -> None:
        """`ended`: how the engine ended, safe to show; empty while it runs."""
        super().__init__()
        self._file, self._ended = file, ended

    def compose(self) -> ComposeResult:
        """The lines."""
        with VerticalScroll() as box:
            box.border_title = "the engine's log"
            box.border_subtitle = hint(self, "log.close", "closes")
            ended = [("\n\n" + self._ended, "bad")] if self._ended else []
            yield TintedText([(visible(str(self._file)) + "\n\n", "dim"), (tail(self._file), "text"), *ended])

    def on_mount(self) -> None:
        """Scroll to the newest lines."""
        box = self.query_one(VerticalScroll)
        box.focus()
        self.call_after_refresh(box.scroll_end, animate=False)


def tail(file: Path) -> str:
    """The last lines of a file, safe to show; a few words where there are none."""
    try:
        with file.open("rb") as source:
            source.seek(max(0, file.stat().st_size - MOST_BYTES))
            text = source.read().decode("utf-8", "replace")
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    return visible(text).strip("\n") or "nothing was written"
