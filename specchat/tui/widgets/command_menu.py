"""The list of commands above the prompt: it narrows as a name is typed."""

from __future__ import annotations

from collections.abc import Mapping

from textual import events

from specchat.tui.text.cells import ScreenLine, cut
from specchat.tui.widgets.painted_lines import PaintedLines
from specchat.tui.widgets.prompt import Menu, Prompt

MOST_LINES = 8
OTHER_LINES = 12
"""Lines of the window that the list leaves to everything else."""


class CommandMenu(PaintedLines):
    """The commands that fit what is typed, each with a sentence; the one that Tab or Enter takes is marked."""

    DEFAULT_CSS = """
    CommandMenu { height: auto; margin: 0 2; background: $surface; display: none; }
    """

    def __init__(self, prompt: Prompt, commands: Mapping[str, tuple[str, str]], *, id: str | None = None) -> None:
        """`commands`: by name, what follows it and what it does."""
        super().__init__(id=id)
        self._prompt, self._commands = prompt, commands
        self._menu: Menu | None = None
        self._top = 0

    def on_mount(self) -> None:
        self.watch(self._prompt, "menu", self._show)

    def on_resize(self) -> None:
        self._show(self._menu)

    def on_click(self, event: events.Click) -> None:
        if self._menu is not None and self._top + event.y < len(self._menu.words):
            self._prompt.take(self._menu.words[self._top + event.y])
            self._prompt.focus()

    def paint(self, width: int, height: int) -> list[ScreenLine]:
        """The commands around the marked one; the last line says how many more there are."""
        if (menu := self._menu) is None:
            return []
        shown = min(height, len(menu.words))
        self._top = max(0, min(max(self._top, menu.at - shown + 1), menu.at, len(menu.words) - shown))
        names = max(len(self._left(word)) for word in menu.words)
        wide = min(names, max(12, width // 3))
        lines: list[ScreenLine] = []
        for at, word in enumerate(menu.words[self._top : self._top + shown], self._top):
            marked = at == menu.at
            left = cut(self._left(word), wide).ljust(wide)
            about = cut(self._commands[word[1:].strip()][1], width - wide - 4)
            role = "selected" if marked else "text"
            lines.append([("▸ " if marked else "  ", "bonus"), (left, role), ("  ", ""), (about, "dim")])
        more = len(menu.words) - self._top - shown
        if more:
            lines[-1] = [*lines[-1], (f"  +{more}", "dim")]
        return lines

    def _show(self, menu: Menu | None) -> None:
        lines = min(MOST_LINES, len(menu.words) if menu else 0, self.app.size.height - OTHER_LINES)
        self._menu = menu
        self._top = 0 if menu is None else self._top
        self.display = lines > 0
        self.styles.height = max(1, lines)
        self.repaint()

    def _left(self, word: str) -> str:
        return f"{word.strip()} {self._commands[word[1:].strip()][0]}".strip()
