"""The tour of the first start: three pages on the tree, the keys, and what can be changed. Typing ends it."""

from __future__ import annotations

from textual.message import Message

from specchat.tui.services.key_bindings import every_key
from specchat.tui.text.cells import ScreenLine, paragraph, width_of, wrapped_lines
from specchat.tui.text.key_names import label_of
from specchat.tui.widgets.painted_lines import PaintedLines

PAGES = 3
LEAST_BESIDE = 16
"""Columns that the meaning of an entry needs beside its name."""

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
_ABOUT = (
    "Small guesses are laid out as a tree.",
    "The model reads all of it at once and keeps what it agrees with:",
)
_MARKS = (
    ("●", "accepted", "guessed, and kept"),
    ("★", "bonus", "the model's own token ends each round"),
    ("✕", "crossed", "guessed, but the model writes another"),
    ("○", "unreached", "never asked: it followed a wrong guess"),
)
_KEYS = ("prompt.send", "prompt.newline", "stop", "palette", "search", "tree", "tokens", "help")
_CHANGES = (
    ("settings", "settings", "act at once, mid-reply"),
    ("pair", "pairs", "which model writes, and what guesses for it"),
    ("", "/show", "large trees, slow enough to watch"),
    ("transcript.token_before", "tokens", "and Enter: what else?"),
    ("", "/race", "the same prompt, plain and speculative, side by side"),
    ("", "@file", "sends a text file along"),
    ("", "/theme", "other colours, calm ones and clear ones"),
)


class TourView(PaintedLines):
    """One page at a time, in place of the welcome page."""

    DEFAULT_CSS = """
    TourView { height: 1fr; min-height: 4; padding: 0 1; }
    TourView.-below { min-height: 16; }
    """

    pages = PAGES

    def __init__(self) -> None:
        super().__init__()
        self.page = 0
        self._part = 0  # of the page, where the screen has no room for all of it
        self._room = 62, 40  # columns and lines

    class Clicked(Message):
        """The user wants the next page."""

    def on_click(self) -> None:
        self.post_message(self.Clicked())

    def next_page(self) -> bool:
        """Show the next page, or what the screen had no room for of this one; False after the last."""
        self._part += 1
        if self._part >= len(self._parts(self.page, *self._room)):
            self.page, self._part = self.page + 1, 0
        self.repaint()
        return self.page < self.pages

    def paint(self, width: int, height: int) -> list[ScreenLine]:
        """A title, the page, and the keys that continue; on a small screen titles are left out and pages are parted."""
        self._room = column, height = max(1, min(width, 62)), max(3, height)
        counts = [len(self._parts(page, column, height)) for page in range(self.pages)]
        page = min(self.page, self.pages - 1)
        part = min(self._part, counts[page] - 1)  # the screen may have grown
        now, last = sum(counts[:page]) + part + 1, sum(counts)
        shown = self._parts(page, column, height)[part]
        gap: list[ScreenLine] = [[]] if len(shown) + 2 <= height else []
        lines = [*shown, *gap, [(self._ways(column, now, last), "dim")]]
        left = " " * max(0, (width - max(width_of(line) for line in lines)) // 2)
        return [[] for _ in range(max(0, (height - len(lines)) // 2))] + [[(left, ""), *line] for line in lines]

    def _ways(self, column: int, now: int, last: int) -> str:
        """The place in the tour, and which keys continue."""
        send, stop = label_of(self, "prompt.send"), label_of(self, "stop")
        goes_on = f"{now} of {last} · {send} goes on · {stop} skips"
        wordings = (f"{goes_on} · or just type", goes_on)
        return next((words for words in wordings if len(words) <= column), f"{now}/{last} · {send} · {stop} skips")

    def _parts(self, page: int, column: int, height: int) -> list[list[ScreenLine]]:
        """A page as the screens that it takes; an entry is parted only where it is higher than a screen."""
        room = height - 1
        title, entries = self.page_of(page, column, room)
        body = [line for entry in entries for line in entry]
        if len(body) + FRAME_LINES <= height:
            return [[[(title, "strong")], [], *body]]
        if len(body) <= room:
            return [body]
        parts: list[list[ScreenLine]] = [[]]
        for entry in entries:
            if parts[-1] and len(parts[-1]) + len(entry) > room:
                parts.append([])
            for line in entry:
                if len(parts[-1]) == room:
                    parts.append([])
                if line or parts[-1]:  # no part begins with a blank line
                    parts[-1].append(line)
        return parts

    def page_of(self, page: int, column: int, room: int) -> tuple[str, list[list[ScreenLine]]]:
        """The title of a page and its entries."""
        return (self._tree(column, room), self._keys(column), self._changes(column))[page]

    def _tree(self, column: int, room: int) -> tuple[str, list[list[ScreenLine]]]:
        about = paragraph(" ".join(_ABOUT), column, "text")
        entries = [about] if len(about) <= room else [paragraph(sentence, column, "text") for sentence in _ABOUT]
        picture = [[*_TREE, []]] if column >= width_of(_TREE[0]) else []
        marks = [_entry(mark, role, said, 3, column) for mark, role, said in _MARKS]
        return "Watch it guess", [*entries, [[]], *picture, *marks]

    def _keys(self, column: int) -> tuple[str, list[list[ScreenLine]]]:
        known = [(label_of(self, id), every_key()[id].help) for id in _KEYS]
        wide = max(len(key) for key, _ in known) + 2
        if wide > MOST_FOR_KEYS * column:
            known = [(key.split(",")[0], said) for key, said in known]
            wide = max(len(key) for key, _ in known) + 2
        return "A few keys", [_entry(key, "accepted", said, wide, column) for key, said in known if key]

    def _changes(self, column: int) -> tuple[str, list[list[ScreenLine]]]:
        named = [(name, label_of(self, id), said) for id, name, said in _CHANGES]
        entries = [
            _entry(f"{name} ({key})" if key else name, "accepted", said, 16, column) for name, key, said in named
        ]
        return "Make it yours", [*entries, [[]], paragraph("The tour comes again with /tour.", column, "text")]


def _entry(name: str, role: str, said: str, indent: int, column: int) -> list[ScreenLine]:
    """A name and what it means, wrapped beside it, or below it where too little room is beside it."""
    if column - indent < LEAST_BESIDE:
        return [[(name, role)], *([("  ", ""), (part, "text")] for part in wrapped_lines(said, max(8, column - 2)))]
    parts = wrapped_lines(said, column - indent)
    first: ScreenLine = [(name.ljust(indent), role), (parts[0], "text")]
    return [first, *([(" " * indent, ""), (part, "text")] for part in parts[1:])]
