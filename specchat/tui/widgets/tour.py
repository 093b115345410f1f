"""The tour of the first start: three pages on the tree, the keys, and what can be changed. Typing ends it."""

from __future__ import annotations

from collections.abc import Callable

from textual.message import Message

from specchat.tui.text.cells import ScreenLine, cut, width_of
from specchat.tui.text.wrap import wrap
from specchat.tui.widgets.painted_lines import PaintedLines

PAGES = 3
NARROW = 40
"""Columns below which every entry gets one line where the page would be too long."""

FRAME_LINES = 4
"""Lines around a page: its title, the way on, and a blank line after and before them."""

MOST_FOR_KEYS = 0.6
"""The share of the columns that all keys of an action may take; where they would take more, one key is named."""

_TREE: list[ScreenLine] = [
    [("The", "root"), ("━", "river"), ("●·quick", "accepted"), ("━", "river"), ("●·brown", "accepted"), ("┯", "river"),
     ("●·fox", "accepted"), ("━", "river"), ("★·jumps", "bonus")],
    [(" " * 19, ""), ("├", "line"), ("✕·dog", "crossed"), ("─", "line"), ("○·sleeps", "unreached")],
    [(" " * 19, ""), ("╰", "line"), ("✕·cat", "crossed")],
]  # fmt: skip
_MARKS = (
    ("●", "accepted", "guessed, and kept"),
    ("★", "bonus", "the model's own token ends each round"),
    ("✕", "crossed", "guessed, but the model writes another"),
    ("○", "unreached", "never asked: it followed a wrong guess"),
)
_KEYS = ("prompt.send", "prompt.newline", "stop", "palette", "search", "tree", "tokens", "help")
_CHANGES = (
    ("settings", "settings", "act at once, even while a reply is being written"),
    ("pair", "pairs", "which model writes, and what guesses for it"),
    ("", "/race", "the same prompt, plain and speculative, side by side"),
    ("", "@file", "sends a text file along; Tab completes its path"),
    ("", "/theme", "other colours; there are calm ones and clear ones"),
)


class TourView(PaintedLines):
    """One page at a time, in place of the welcome page."""

    DEFAULT_CSS = """
    TourView { height: 1fr; min-height: 4; padding: 0 1; }
    TourView.-below { min-height: 16; }
    """

    def __init__(self, key_of: Callable[[str], str], help_of: Callable[[str], str]) -> None:
        super().__init__()
        self.page = 0
        self._key_of = key_of
        self._help_of = help_of

    class Clicked(Message):
        """The user wants the next page."""

    def on_click(self) -> None:
        """Go on."""
        self.post_message(self.Clicked())

    def next_page(self) -> bool:
        """Show the next page; False after the last."""
        self.page += 1
        self.repaint()
        return self.page < PAGES

    def paint(self, width: int, height: int) -> list[ScreenLine]:
        """A title, the page, and the keys that continue; on a small screen the title is left out."""
        column = max(1, min(width, 62))
        page = (self._tree, self._keys, self._changes)[min(self.page, PAGES - 1)]
        title, body = page(column, False)
        if column < NARROW and height < len(body) + FRAME_LINES:
            title, body = page(column, True)
        send, stop = self._key_of("prompt.send"), self._key_of("stop")
        goes_on = f"{send} goes on · {stop} skips"
        wordings = (f"{self.page + 1} of {PAGES} · {goes_on} · or just type", f"{self.page + 1} of {PAGES} · {goes_on}")
        least = f"{self.page + 1}/{PAGES} · {send} · {stop} skips"
        ways = next((words for words in wordings if len(words) <= column), least)
        lines: list[ScreenLine] = (
            [[(title, "strong")], [], *body] if height >= len(body) + FRAME_LINES else body[: max(0, height - 2)]
        )
        lines = [*lines, [], [(ways, "dim")]]
        left = " " * max(0, (width - max(width_of(line) for line in lines)) // 2)
        return [[] for _ in range(max(0, (height - len(lines)) // 2))] + [[(left, ""), *line] for line in lines]

    def _tree(self, column: int, short: bool) -> tuple[str, list[ScreenLine]]:
        about = "Small guesses are laid out as a tree. The model reads all of it at once and keeps what it agrees with:"
        picture = _TREE if column >= width_of(_TREE[0]) else []
        marks = [_entry(mark, role, said, 3, column, short) for mark, role, said in _MARKS]
        return "Watch it guess", [*_lines(about, column), [], *picture, *([[]] if picture else []), *_flat(marks)]

    def _keys(self, column: int, short: bool) -> tuple[str, list[ScreenLine]]:
        known = [(self._key_of(id), self._help_of(id)) for id in _KEYS]
        wide = max(len(key) for key, _ in known) + 2
        if wide > MOST_FOR_KEYS * column:
            known = [(key.split(",")[0], said) for key, said in known]
            wide = max(len(key) for key, _ in known) + 2
        entries = [_entry(key, "accepted", said, wide, column, short) for key, said in known if key]
        return "A few keys", _flat(entries)

    def _changes(self, column: int, short: bool) -> tuple[str, list[ScreenLine]]:
        entries = []
        for id, name, said in _CHANGES:
            key = self._key_of(id) if id else ""
            entries.append(_entry(f"{name} ({key})" if key else name, "accepted", said, 16, column, short))
        after = "The tour comes again with /tour."
        return "Make it yours", [*_flat(entries), [], *_lines(after, column)]


def _lines(text: str, column: int) -> list[ScreenLine]:
    return [[(text[a:b].strip(), "text")] for a, b in wrap(text, column)]


def _entry(name: str, role: str, said: str, indent: int, column: int, short: bool) -> list[ScreenLine]:
    """A name and what it means, wrapped beside it, or cut to one line."""
    room = max(8, column - indent)
    parts = [cut(said, room)] if short else [said[a:b].strip() for a, b in wrap(said, room)]
    first: ScreenLine = [(name.ljust(indent), role), (parts[0], "text")]
    return [first, *([(" " * indent, ""), (part, "text")] for part in parts[1:])]


def _flat(entries: list[list[ScreenLine]]) -> list[ScreenLine]:
    return [line for entry in entries for line in entry]
