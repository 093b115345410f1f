"""The end of the reply in a few lines, below a tree that fills the window."""

from __future__ import annotations

from specchat.tui.draw.reply_end import last_wrapped_lines
from specchat.tui.state.chat import Chat
from specchat.tui.text.cells import ScreenLine
from specchat.tui.widgets.painted_lines import PaintedLines


class Subtitle(PaintedLines):
    """Shows the last lines of the newest reply, tinted by who wrote them, and the guesses behind it."""

    DEFAULT_CSS = """
    Subtitle { height: 3; padding: 0 2; display: none; }
    """

    def __init__(self, chat: Chat, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._chat = chat
        self._preview: ScreenLine = []

    def set_preview(self, runs: ScreenLine) -> None:
        """Show these runs behind the text; they are not part of it."""
        if runs != self._preview:
            self._preview = list(runs)
            self.repaint()

    def paint(self, width: int, height: int) -> list[ScreenLine]:
        """The last lines of the reply."""
        reply = self._chat.newest_reply
        pieces = [] if reply is None else reply.pieces
        return last_wrapped_lines([*pieces, *self._preview], width, height)
