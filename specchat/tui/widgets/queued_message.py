"""The widget above the prompt that shows a message queued while a reply is written."""

from __future__ import annotations

from collections.abc import Callable

from specchat.tui.state import attachments
from specchat.tui.state.chat import Chat
from specchat.tui.text.cells import ScreenLine, cut, width_of
from specchat.tui.widgets.painted_lines import PaintedLines


class QueuedMessage(PaintedLines):
    """One line, visible only while a message is queued."""

    DEFAULT_CSS = """
    QueuedMessage { height: 1; padding: 0 2; display: none; }
    """

    def __init__(self, chat: Chat, key_of: Callable[[str], str], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._chat = chat
        self._key_of = key_of
        self._shown: str | None = None

    def update(self) -> None:
        """Show the message that is queued now, or hide."""
        if self._chat.queued != self._shown:
            self._shown = self._chat.queued
            self.display = self._shown is not None
            self.repaint()

    def paint(self, width: int, height: int) -> list[ScreenLine]:
        """The beginning of the message, and the key that takes it back."""
        if self._shown is None:
            return []
        line: ScreenLine = [("⧗ waits: ", "bonus")]
        keys = " or ".join(key for id in ("stop", "prompt.earlier") if (key := self._key_of(id)))
        ways = f"  {keys} takes it back" if width >= 60 and keys else ""
        room = max(1, width - width_of(line) - len(ways))
        said = cut(" ".join(attachments.split(self._shown)[0][:400].split()), room)
        line.append((said, "text"))
        return [[*line, (" " * (width - width_of(line) - len(ways)), ""), (ways, "dim")]]
