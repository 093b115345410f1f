"""The end of the reply in a few rows, below a tree that fills the window."""

from __future__ import annotations

from specchat.tui.state.session import Chat
from specchat.tui.text.cells import Row
from specchat.tui.text.wrap import wrap
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
        reply = self._chat.last_reply()
        pieces = [] if reply is None else reply.pieces
        return last_rows([*pieces, *self._preview], width, height)


def last_rows(runs: list[tuple[str, str]], width: int, height: int) -> list[Row]:
    """The end of these runs as at most `height` wrapped rows; line breaks are shown as blanks."""
    kept: list[tuple[str, str]] = []
    characters = 0
    for text, role in reversed(runs):
        if characters > width * height:
            break
        kept.insert(0, (" ".join(text.split("\n")).replace("\t", " "), role))
        characters += len(text)
    whole = "".join(text for text, _ in kept)
    spans = wrap(whole, max(1, width))[-height:] if whole else []
    return [_between(kept, start, end) for start, end in spans]


def _between(runs: list[tuple[str, str]], start: int, end: int) -> Row:
    """The part of the runs from one character to another."""
    row: Row = []
    at = 0
    for text, role in runs:
        left, right = max(start, at), min(end, at + len(text))
        if left < right:
            row.append((text[left - at : right - at], role))
        at += len(text)
    return row
