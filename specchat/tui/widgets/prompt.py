"""Where the user writes: Enter sends, Ctrl+J makes a new line, empty Up brings back what was sent."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import TextArea

NEWLINE_KEYS = frozenset({"ctrl+j", "shift+enter", "alt+enter"})


class Prompt(TextArea):
    """A text area that sends."""

    DEFAULT_CSS = """
    Prompt {
        height: auto; max-height: 10; min-height: 3; padding: 0 1; border: round $border; background: $surface;
        scrollbar-size-vertical: 1;
        &:focus { border: round $primary; }
        & .text-area--cursor-line { background: transparent; }
        & .text-area--placeholder { color: $quiet-color; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "earlier", "earlier message", show=False, id="prompt.earlier"),
        Binding("down", "later", "later message", show=False, id="prompt.later"),
    ]

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, placeholder="Say something · / for commands", tab_behavior="focus")
        self.cursor_blink = False
        self._sent: list[str] = []
        self._recalled: int | None = None

    class Submitted(Message):
        """The user pressed Enter on something."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    async def _on_key(self, event: events.Key) -> None:
        if event.key == "enter":
            event.stop()
            event.prevent_default()
            if self.text.strip():
                self.post_message(self.Submitted(self.text))
            return
        if event.key in NEWLINE_KEYS:
            event.stop()
            event.prevent_default()
            self.insert("\n")
            return
        await super()._on_key(event)

    def action_earlier(self) -> None:
        """On the first line: bring back what was sent before."""
        if self.cursor_location[0] > 0 or not self._sent:
            self.action_cursor_up()
        else:
            self._recall((len(self._sent) if self._recalled is None else self._recalled) - 1)

    def action_later(self) -> None:
        """On the last line: go forward again."""
        if self._recalled is None or self.cursor_location[0] < self.document.line_count - 1:
            self.action_cursor_down()
        else:
            self._recall(self._recalled + 1)

    def taken(self, text: str) -> None:
        """The text was sent: remember it and be empty."""
        if not self._sent or self._sent[-1] != text:
            self._sent.append(text)
        self._recalled = None
        self.clear()

    def write(self, text: str) -> None:
        """Put this text under the cursor's care, replacing what is there."""
        self.text = text
        self.move_cursor(self.document.end)

    def _recall(self, index: int) -> None:
        if index >= len(self._sent):
            self._recalled = None
            self.clear()
            return
        self._recalled = max(0, index)
        self.write(self._sent[self._recalled])
