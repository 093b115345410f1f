"""The end of the reply in a few rows, below a tree that fills the window."""

from __future__ import annotations

from specchat.tui.draw.reply_end import last_rows
from specchat.tui.state.session import Chat
from specchat.tui.text.cells import Row
from specchat.tui.widgets.painted_rows import PaintedRows


class Subtitle(PaintedRows):
    """Shows the last rows of the newest reply, tinted by who wrote them, and the guesses behind it."""

    DEFAULT_CSS = """
    Subtitle { height: 3; padding: 0 2; display: none; }
    """

    def __init__(self, chat: Chat, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._chat = chat
        self._preview: Row = []

    def set_preview(self, runs: Row) -> None:
        """Show these runs behind the text; they are not part of it."""
        if runs != self._preview:
            self._preview = list(runs)
            self.repaint()

    def paint(self, width: int, height: int) -> list[Row]:
        """The last rows of the reply."""
        reply = self._chat.newest_reply
        pieces = [] if reply is None else reply.pieces
        return last_rows([*pieces, *self._preview], width, height)
