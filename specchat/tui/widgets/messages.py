"""The views of the transcript besides replies: the user's messages, notes of the app, counts of unmounted messages."""

from __future__ import annotations

from dataclasses import dataclass

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.reactive import reactive

from specchat.engine.protocol.text import visible
from specchat.tui.state import attachments, thoughts
from specchat.tui.state.turn import Turn
from specchat.tui.text.cells import LONGEST_LINE, MOST_CHARACTERS, ScreenLine, cut, first_lines
from specchat.tui.widgets.reply_view import ReplyView, branch_label, log_undrawable
from specchat.tui.widgets.tinted_text import TintedText

LONGEST_SHOWN_LINES = 24
MOST_UNFOLDED_LINES = 500
MOST_FILES = 100


class UserView(Vertical):
    """A message of the user; long texts and files are folded, and a click unfolds them."""

    DEFAULT_CSS = """
    UserView {
        height: auto; max-width: 100; margin: 0 0 1 0; padding: 0 1; border-left: outer $accent 70%;
        background: $surface;
    }
    """

    unfolded: reactive[bool] = reactive(False, init=False)
    """Show long texts and files in full."""

    def __init__(self, turn: Turn) -> None:
        super().__init__()
        self.turn = turn
        self.text = turn.content

    def compose(self) -> ComposeResult:
        yield TintedText(self._runs())

    def on_click(self) -> None:
        self.unfolded = not self.unfolded

    def watch_unfolded(self) -> None:
        for text in self.query(TintedText):
            text.set(self._runs())

    def _runs(self) -> ScreenLine:
        """What is drawn of the message; all of it as plain text if its parts cannot be told."""
        try:
            return self._parts()
        except Exception:
            log_undrawable(self.turn)
            return first_lines(self.text, LONGEST_SHOWN_LINES)

    def _parts(self) -> ScreenLine:
        """The text and the files, as far as they are unfolded and there is room."""
        without_thoughts, files = attachments.split(self.text)
        lines, room = MOST_UNFOLDED_LINES, MOST_CHARACTERS
        runs = first_lines(without_thoughts, lines if self.unfolded else LONGEST_SHOWN_LINES)
        for file in files[:MOST_FILES]:
            opened = self.unfolded and lines > 0 and room > 0
            path = visible(cut(file.path, LONGEST_LINE))
            runs += [(f"\n{'▾' if opened else '▸'} ", "dim"), (f"@{path}", "accepted"), (f" ({file.size})", "dim")]
            if opened and file.lines:
                shown = first_lines(file.text, lines, room)
                lines, room = lines - len(file.lines), room - len(shown[0][0])
                runs += [("\n", ""), *shown]
        if len(files) > MOST_FILES:
            runs.append((f"\n… {len(files) - MOST_FILES:,} more files", "dim"))
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
        yield TintedText([(visible(self.text), self._role)])


MessageView = ReplyView | UserView
"""The view of one message."""


class OlderView(TintedText):
    """Shows how many messages are before the page; a click mounts some."""

    DEFAULT_CSS = """
    OlderView, NewerView { margin: 0 0 1 0; padding: 0 1 0 2; &:hover { background: $surface; } }
    """
    ARROW, WORD, STEP = "▲", "older", -1

    @dataclass
    class Clicked(Message):
        step: int  # of the page: back or on

    def count(self, messages: int) -> None:
        self.set([(f"{self.ARROW} {messages:,} {self.WORD} message{'s' if messages != 1 else ''}", "dim")])

    def on_click(self) -> None:
        self.post_message(self.Clicked(self.STEP))


class NewerView(OlderView):
    """The same for messages after the page."""

    ARROW, WORD, STEP = "▼", "newer", 1


def view_of(turn: Turn) -> MessageView:
    return ReplyView(turn.reply, turn) if turn.reply else UserView(turn)


def text_of(view: MessageView) -> str:
    """A message's text without thoughts, safe to paste anywhere."""
    return visible(thoughts.without_thoughts(view.reply.text) if isinstance(view, ReplyView) else view.text)


def lines_of(turn: Turn, width: int) -> int:
    """An estimate of the lines of a turn at this width, to choose how many messages fill a page.

    A cell of a table costs as much as a line.
    """
    lines = (turn.content if turn.reply is None else turn.message().content).split("\n")
    if turn.reply is None:
        lines = [line[:LONGEST_LINE] for line in lines[: LONGEST_SHOWN_LINES + 1]]
    return 2 + sum(1 + max(len(line) // max(1, width), line.count("|") - 2) for line in lines)
