"""The welcome page of an empty chat: what specchat does, and the progress of loading."""

from __future__ import annotations

from specchat.tui.state.session import Chat
from specchat.tui.text import numbers
from specchat.tui.text.cells import Row, bar, width_of
from specchat.tui.text.key_names import hint
from specchat.tui.text.wrap import wrap
from specchat.tui.widgets.painted_rows import PaintedRows

_ABOUT = (
    "A drafter guesses a tree of tokens, the model reads the whole tree at once and keeps "
    "what it would have written itself. Watch it happen beside the text."
)
_ABOUT_NARROW = "Guessed in a tree, checked at once, kept where the model agrees."


class Welcome(PaintedRows):
    """The empty page, with progress while a pair is loaded."""

    DEFAULT_CSS = """
    Welcome { height: 1fr; min-height: 4; padding: 0 1; }
    """

    def __init__(self, chat: Chat) -> None:
        super().__init__()
        self._chat = chat

    def paint(self, width: int, height: int) -> list[Row]:
        """A few centred lines, fewer where there is no room."""
        rows: list[Row] = [_tree_of_dots(), [("specchat", "strong")], []] if height >= 9 else [[("specchat", "strong")]]
        about = _ABOUT if width >= 50 else _ABOUT_NARROW
        column = min(width, 62)
        if height >= 7:
            rows += [[(about[a:b].strip(), "dim")] for a, b in wrap(about, column)] + [[]]
        rows += self._state(column)
        if self._chat.found and height >= 12:
            rows += [[], *([(self._chat.found[a:b].strip(), "bonus")] for a, b in wrap(self._chat.found, column))]
            rows.append([(hint(self, "pair", "adds and loads it") or "/pair adds and loads it", "dim")])
        top = max(0, (height - len(rows)) // 2 - (height > 16))
        return [[] for _ in range(top)] + [_centred(row, width) for row in rows]

    def _state(self, column: int) -> list[Row]:
        chat = self._chat
        if chat.engine.phase == "loading" and chat.engine.loading is not None:
            what, share, figures = numbers.loading(chat.engine.loading)
            cancels = f"{key} · " if (key := hint(self, "stop", "cancels")) else ""
            line: Row = [(bar(share or 0.0, min(40, column)), "bar")] if share is not None else []
            return [[(what, "text")], line, [(figures, "dim")], [(cancels + "you can already type", "dim")]]
        if chat.engine.phase in ("starting", "loading"):
            name = chat.engine.loading_pair
            return [[(f"getting {name} ready; you can already type" if name else "starting", "dim")]]
        if chat.engine.ready is not None and chat.engine.phase == "ready":
            ready = chat.engine.ready
            with_draft = f" · drafts by {ready.draft}" if ready.draft else ""
            place = " · ".join(part for part in (ready.device, ready.dtype) if part)
            return [[(ready.target, "accepted"), (with_draft, "dim")], [(place, "dim")]]
        return []


def _tree_of_dots() -> Row:
    return [("●", "accepted"), ("━", "river"), ("●", "accepted"), ("━", "river"), ("★", "bonus"), (" ", "")]


def _centred(row: Row, width: int) -> Row:
    return [(" " * max(0, (width - width_of(row)) // 2), ""), *row]
