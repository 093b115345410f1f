"""Pages of text over the chat: all keys and commands, and the end of the engine's log for bug reports."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from textual.binding import BindingType
from textual.events import Resize

from specchat.engine.protocol.text import visible
from specchat.tui.screens.page import Page
from specchat.tui.text.cells import wrapped_lines
from specchat.tui.text.key_names import bind, hint
from specchat.tui.widgets.tinted_text import TintedText

KEY_COLUMNS = 26
"""The most columns for what to press or type; what is longer has a line of its own."""


class HelpScreen(Page[None]):
    """Sections of (what to press or type, what it does)."""

    DEFAULT_CSS = """
    HelpScreen > VerticalScroll { width: 80; max-height: 90%; padding: 0 2; scrollbar-size-vertical: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [bind("escape,q,f1", "dismiss(None)", "close", "help.close")]

    def __init__(self, sections: list[tuple[str, list[tuple[str, str]]]]) -> None:
        super().__init__(_Sections(sections), scrolls=True)

    def on_mount(self) -> None:
        self.entitle("help", hint(self, "help.close", "closes"))


class _Sections(TintedText):
    """The sections, in two columns of the width that there is."""

    def __init__(self, sections: list[tuple[str, list[tuple[str, str]]]]) -> None:
        super().__init__()
        self._sections = sections

    def on_resize(self, event: Resize) -> None:
        self.set(self._runs(event.size.width))

    def _runs(self, width: int) -> list[tuple[str, str]]:
        column = max(len(left) for _, entries in self._sections for left, _ in entries) + 2
        column = min(column, KEY_COLUMNS, width // 2)
        runs: list[tuple[str, str]] = []
        for title, entries in self._sections:
            runs.append((f"\n{title}\n", "strong"))
            for left, right in entries:
                beside = "\n" + " " * (column + 2)
                said = beside.join(wrapped_lines(right, width - column - 2))
                own_line = beside if len(left) > column - 2 else ""
                runs += [(f"  {left:<{column}}", "accepted"), (f"{own_line}{said}\n", "text")]
        return runs


MOST_BYTES = 64_000


class LogScreen(Page[None]):
    DEFAULT_CSS = """
    LogScreen > VerticalScroll { width: 96%; max-height: 90%; scrollbar-size-vertical: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [bind("escape,q", "dismiss(None)", "close", "log.close")]

    def __init__(self, file: Path, ended: str = "") -> None:
        """`ended`: how the engine ended, safe to show; empty while it runs."""
        last = [("\n\n" + ended, "bad")] if ended else []
        text = TintedText([(visible(str(file)) + "\n\n", "dim"), (tail(file), "text"), *last])
        super().__init__(text, scrolls=True)

    def on_mount(self) -> None:
        self.entitle("the engine's log", hint(self, "log.close", "closes"))
        self.box.focus()
        self.call_after_refresh(self.box.scroll_end, animate=False)


def tail(file: Path) -> str:
    """The last lines of a file, safe to show; a few words where there are none."""
    try:
        with file.open("rb") as source:
            source.seek(max(0, file.stat().st_size - MOST_BYTES))
            text = source.read().decode("utf-8", "replace")
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    return visible(text).strip("\n") or "nothing was written"
