"""The line about other programs that use the engine: where they reach it, who asks, and how far the reply is."""

from __future__ import annotations

from specchat.tui.draw.tree_captions import summary_of
from specchat.tui.state.chat import Chat
from specchat.tui.text.cells import ScreenLine, cut, width_of
from specchat.tui.text.numbers import count
from specchat.tui.widgets.painted_lines import PaintedLines


class ServedLine(PaintedLines):
    """One line, visible only while other programs may use the engine."""

    DEFAULT_CSS = """
    ServedLine { height: 1; padding: 0 2; display: none; }
    """

    def __init__(self, chat: Chat, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._chat = chat

    def update(self) -> None:
        """Show the present state, or hide."""
        shown = bool(self._chat.background.serving)
        if shown != self.display:
            self.display = shown
        if shown:
            self.repaint()

    def paint(self, width: int, height: int) -> list[ScreenLine]:
        """Who waits for the engine; else who asks what and how long the reply is; at first the address."""
        if waits := self._chat.background.waiting_client:
            return [[("⇄ ", "warn"), (cut(f"{waits} waits until the engine is free", width - 2), "text")]]
        served = self._chat.served
        if served is None:
            return [
                [("⇄ ", "good"), (cut(f"other programs may ask at {self._chat.background.serving}", width - 2), "dim")]
            ]
        summary = summary_of(served.figures)
        figures = "  " + " · ".join(part for part in (f"{count(served.figures.tokens)} tok", summary) if part)
        line: ScreenLine = [("⇄ ", "good"), (f"{served.client} {'asks' if served.running else 'asked'}: ", "strong")]
        room = max(0, width - width_of(line) - len(figures))
        return [[*line, (cut(served.question, room), "text"), (figures, "dim")]]
