"""The views of the transcript besides replies: the user's messages, notes of the app, counts of unmounted messages."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.reactive import reactive

from specchat.engine.protocol.text import visible
from specchat.tui.state import attachments, thoughts
from specchat.tui.state.turn import Turn
from specchat.tui.text.cells import cut
from specchat.tui.widgets.reply_view import ReplyView, branch_label
from specchat.tui.widgets.tinted_text import TintedText

LONGEST_SHOWN_LINES = 24
MOST_UNFOLDED_LINES = 500
LONGEST_SHOWN_LINE = 2_000


class UserView(Vertical):
    """A message of the user; long texts and files are folded, and a click unfolds them."""

    DEFAULT_CSS = """
    UserView { height: auto; margin: 0 0 1 0; padding: 0 1; border-left: outer $accent 70%; background: $surface; }
    """

    unfolded: reactive[bool] = reactive(False, init=False)
    """Show long texts and files in full."""

    def __init__(self, turn: Turn) -> None:
        super().__init__()
        self.turn = turn
        self.text = turn.content

    def compose(self) -> ComposeResult:
        """The first lines, how many more there are, and one line per file."""
        yield TintedText(self._runs())

    def on_click(self) -> None:
        """Open what is folded, or fold it."""
        self.unfolded = not self.unfolded

    def watch_unfolded(self) -> None:
        """Show more, or less."""
        for text in self.query(TintedText):
            text.set(self._runs())

    def _runs(self) -> list[tuple[str, str]]:
        without_thoughts, files = attachments.split(self.text)
        runs = _first_lines(without_thoughts, MOST_UNFOLDED_LINES if self.unfolded else LONGEST_SHOWN_LINES)
        for file in files:
            mark = "▾" if self.unfolded else "▸"
            runs += [(f"\n{mark} ", "dim"), (f"@{visible(file.path)}", "accepted"), (f" ({file.size})", "dim")]
            if self.unfolded and file.lines:
                runs += [("\n", ""), *_first_lines(file.text, MOST_UNFOLDED_LINES)]
        if place := branch_label(self.turn):
            runs.append((f"\n{place}", "dim"))
        return runs


class NoteView(Vertical):
    """One line from the app itself."""

    DEFAULT_CSS = """
    NoteView { height: auto; margin: 0 0 1 0; padding: 0 1 0 2; }
    """

    def __init__(self, text: str, role: str) -> None:
        super().__init__()
        self.text = text
        self._role = role

    def compose(self) -> ComposeResult:
        """The line, as it is."""
        yield TintedText([(visible(self.text), self._role)])


MessageView = ReplyView | UserView
"""The view of one message."""


class OlderView(TintedText):
    """Shows how many messages are before the page; a click mounts some."""

    DEFAULT_CSS = """
    OlderView, NewerView { margin: 0 0 1 0; padding: 0 1 0 2; &:hover { background: $surface; } }
    """
    ARROW = "▲"
    WORD = "older"

    class Asked(Message):
        """The user wants to see them."""

    def count(self, messages: int) -> None:
        """Show this number."""
        self.set([(f"{self.ARROW} {messages:,} {self.WORD} message{'s' if messages != 1 else ''}", "dim")])

    def on_click(self) -> None:
        """Request them."""
        self.post_message(self.Asked())


class NewerView(OlderView):
    """Shows how many messages are after the page; a click mounts some."""

    ARROW = "▼"
    WORD = "newer"

    class Asked(Message):
        """The user wants to see them."""

    def on_click(self) -> None:
        """Request them."""
        self.post_message(self.Asked())


def _first_lines(text: str, most: int) -> list[tuple[str, str]]:
    """The first lines, and how much more there is."""
    lines = text.split("\n", most)
    more = lines.pop().count("\n") + 1 if len(lines) > most else 0
    shown = "\n".join(cut(visible(line[:LONGEST_SHOWN_LINE]), LONGEST_SHOWN_LINE) for line in lines)
    cropped = sum(max(0, len(line) - LONGEST_SHOWN_LINE) for line in lines)
    rest = [f"{more:,} more lines" if more else "", f"{cropped:,} more characters" if cropped else ""]
    said = ", ".join(part for part in rest if part)
    return [(shown, "text"), *([(f"\n… {said}", "dim")] if said else [])]


def view_of(turn: Turn) -> MessageView:
    """A new view of this turn."""
    return ReplyView(turn.reply, turn) if turn.reply else UserView(turn)


def text_of(view: MessageView) -> str:
    """A message's text without thoughts, safe to paste anywhere."""
    return visible(thoughts.without_thoughts(view.reply.text) if isinstance(view, ReplyView) else view.text)


def lines_of(turn: Turn, width: int) -> int:
    """An estimate of the lines of a turn at this width, to choose how many messages fill a page."""
    lines = turn.message().content.split("\n")
    shown = lines if turn.reply else [line[:LONGEST_SHOWN_LINE] for line in lines[: LONGEST_SHOWN_LINES + 1]]
    return 2 + sum(1 + len(line) // max(1, width) for line in shown)
