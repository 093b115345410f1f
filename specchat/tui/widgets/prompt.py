"""The prompt: a text area with keys to send, add a line, recall sent messages and complete."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.message import Message
from textual.reactive import reactive
from textual.widgets import Input

from specchat.store.prompt_history import History
from specchat.tui.state.prompt_text import Completion, Pastes, is_long, with_unix_line_ends
from specchat.tui.text.key_names import bind, run_bound, typed_by
from specchat.tui.textual_patches.fixed_app import Edit, EditResult, FixedTextArea, Location


@dataclass(frozen=True)
class Menu:
    """The commands that fit the name being typed, and which of them is marked."""

    words: tuple[str, ...]
    at: int = 0


class Prompt(FixedTextArea):
    """A text area whose text can be sent. A long paste is shown as one word."""

    DEFAULT_CSS = """
    Prompt {
        height: auto; max-height: 10; min-height: 3; padding: 0 1; border: round $border; background: $surface;
        scrollbar-size-vertical: 1;
        &:focus { border: round $primary; }
        & .text-area--cursor-line { background: transparent; }
        & .text-area--placeholder { color: $quiet-color; }
        & .text-area--suggestion { color: $quiet-color; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("enter", "send", "send", "prompt.send"),
        bind("ctrl+j,shift+enter,alt+enter", "newline", "new line", "prompt.newline"),
        bind("up", "earlier", "messages sent before; the one that waits", "prompt.earlier"),
        bind("down", "later", "messages sent later", "prompt.later"),
        bind("ctrl+underscore", "undo", "undo what was written", "prompt.undo"),
        bind("tab", "complete", "complete a command or @path, else move on", "prompt.complete"),
    ]

    menu: reactive[Menu | None] = reactive(None, layout=False)
    """The list of commands, while the name of one is typed."""

    def __init__(self, history: History | None = None, *, id: str | None = None) -> None:
        super().__init__(id=id, placeholder="Say something · /command · @file", tab_behavior="focus")
        self.cursor_blink = False
        self.written = ""  # the text that the app put here
        self.waiting = ""  # the queued message
        self.completion: Completion | None = None
        self.sent = history or History()
        self.completer: Callable[[str], Completion | None] = lambda line: None
        self._pastes = Pastes()
        self._posted: list[str] = []  # what was sent and nobody has taken yet, as it stands here
        self._recalled: int | None = None
        self._unsent = ""  # the unsent text while a sent message is recalled
        self._offered: tuple[str, tuple[str, ...]] | None = None  # text after the last Tab, and what Tab offers next

    @dataclass
    class Sent(Message):
        """The user sent a text; pastes are in full."""

        text: str

    class SentEmpty(Message):
        """The user pressed the send key in an empty prompt."""

    class MovedOn(Message):
        """The user pressed the key that completes where there is nothing to complete: the focus moves on."""

    class TakenBack(Message):
        """The user wants the queued message back in the prompt."""

    @property
    def full_text(self) -> str:
        """What would be sent: the text with every paste in full."""
        return self._pastes.unfold(self.text)

    async def on_key(self, event: events.Key) -> None:
        if typed_by(event) or await run_bound(self, event):
            return
        if event.key in ("up", "down", "enter"):  # remapped by the user: the text area's own action
            event.prevent_default()
            {"up": self.action_cursor_up, "down": self.action_cursor_down, "enter": self.action_newline}[event.key]()
        elif event.is_printable:
            event.prevent_default()

    async def on_paste(self, event: events.Paste) -> None:
        event.prevent_default()
        event.stop()
        text = with_unix_line_ends(event.text)
        text = self._pastes.label(text) if is_long(text) else text
        self.replace(text, *self.selection, maintain_selection_offset=False)

    def edit(self, edit: Edit) -> EditResult:
        """A paste is changed as a whole or not at all. To delete the last line, Textual names the line after it."""
        first, last = sorted(map(self.within, (edit.from_location, edit.to_location)))
        if first == last:
            edit.from_location = edit.to_location = self._label_edge(first, True)
        else:
            edit.from_location, edit.to_location = self._label_edge(first, False), self._label_edge(last, True)
        return super().edit(edit)

    def update_suggestion(self) -> None:
        """Find the completions; a single one is shown behind the cursor."""
        row, column = self.cursor_location
        line = self.document[row]
        self.completion = self.completer(line[:column]) if line and (row == 0 or "@" in line) else None
        found = self.completion
        alone = found.words[0] if found is not None and len(found.words) == 1 and column == len(line) else ""
        typed = line[found.start : column] if found is not None else ""
        self.suggestion = alone[len(typed) :] if alone.startswith(typed) else ""
        names = found is not None and found.start == 0 and self.document.line_count == 1 and column == len(line)
        self.menu = Menu(found.words) if found is not None and names else None

    def close_menu(self) -> bool:
        """Close the list of commands until something is typed; False if it is not open."""
        was_open, self.menu = self.menu is not None, None
        return was_open

    def take(self, word: str) -> None:
        self._replace_word(0, 0, len(self.document[0]), word)

    def action_send(self) -> None:
        """Complete the command that is marked; else send the text, or report that there is none."""
        menu = self.menu
        complete = menu is not None and not menu.at and self.text in {word.strip() for word in menu.words}
        if menu is not None and not complete and self.text != menu.words[menu.at].strip():
            self.take(menu.words[menu.at])
            return
        posted = "".join(self._posted)
        behind = self.text.removeprefix(posted) or self.text  # a busy app has not taken out yet what was sent before
        if behind.strip():
            self._posted.append(behind)
        self.post_message(self.Sent(self._pastes.unfold(behind)) if behind.strip() else self.SentEmpty())

    def take_sent(self) -> None:
        """Leave what was typed behind the text that was sent first, where the app was too busy to take that at once."""
        sent = self._posted.pop(0) if self._posted else ""
        if sent and self.text.startswith(sent) and (behind := self.text.removeprefix(sent)):
            self.text = behind
            self.move_cursor(self.document.end)

    def action_newline(self) -> None:
        self.insert("\n")

    def action_earlier(self) -> None:
        """In the list of commands: mark the one above. On the first line: recall a message, queued or sent."""
        if self._move_in_menu(-1):
            return
        if not self.text and self.waiting:
            self.post_message(self.TakenBack())
        elif self.cursor_location[0] > 0 or not self.sent.texts:
            self.action_cursor_up()
        else:
            if self._recalled is None:
                self._unsent = self.full_text
            self._show_sent((len(self.sent.texts) if self._recalled is None else self._recalled) - 1)

    def action_later(self) -> None:
        """In the list of commands: mark the one below. On the last line: later sent messages, then the unsent text."""
        if self._move_in_menu(1):
            return
        if self._recalled is None or self.cursor_location[0] < self.document.line_count - 1:
            self.action_cursor_down()
        else:
            self._show_sent(self._recalled + 1)

    def action_complete(self) -> None:
        """Complete the common part, then cycle through the completions; without any, move the focus."""
        row, column = self.cursor_location
        if self.menu is not None and self.menu.at:
            self.take(self.menu.words[self.menu.at])
            return
        if self._offered is not None and self._offered[0] == self.text:
            words = self._offered[1]
            start = column - len(words[-1])
        elif self.completion is not None:
            start, words = self.completion.start, self.completion.words
            common = os.path.commonprefix(words)  # noqa: RUF071  (by characters, as wanted)
            if len(common) > column - start:
                self._replace_word(row, start, column, common)
                return
        else:
            self.post_message(self.MovedOn())
            return
        self._replace_word(row, start, column, words[0])
        self._offered = (self.text, (*words[1:], words[0])) if len(words) > 1 else None

    def accept(self, text: str) -> None:
        """The text was accepted: add it to the history and clear the prompt."""
        self.sent.add(text)
        self._recalled, self._unsent = None, ""
        self.clear()

    def restore_refused(self, text: str) -> None:
        """The text was refused: put it back into an empty prompt and select it, so that typing replaces it."""
        if not self.text:
            self.write(text)
        if self.full_text == text:
            self.select_all()

    def clear_selection(self) -> None:
        self.move_cursor(self.cursor_location)

    def write(self, text: str) -> None:
        self.text = self.written = self._pastes.fold(text)
        self.move_cursor(self.document.end)

    def _move_in_menu(self, step: int) -> bool:
        """Mark another command; False where there is no list, or a sent message was recalled."""
        recalled = self._recalled is not None and self.text == self.written
        if self.menu is None or recalled or len(self.menu.words) < 2:
            return False
        self.menu = replace(self.menu, at=(self.menu.at + step) % len(self.menu.words))
        return True

    def _show_sent(self, index: int) -> None:
        if index >= len(self.sent.texts):
            self._recalled = None
            self.write(self._unsent)
            return
        self._recalled = max(0, index)
        self.write(self.sent.texts[self._recalled])

    def _replace_word(self, row: int, start: int, end: int, word: str) -> None:
        self.replace(word, (row, start), (row, end), maintain_selection_offset=False)
        self.move_cursor((row, start + len(word)))

    def _label_edge(self, place: Location, forward: bool) -> Location:
        row, column = place
        inside = ((start, end) for start, end in self._pastes.spans(self.document[row]) if start < column < end)
        start, end = next(inside, (column, column))
        return row, end if forward else start


class LineInput(Input):
    """Textual's input. Alt and a letter type nothing, as in the prompt: they act where they are bound."""

    DEFAULT_CSS = """
    LineInput {
        height: 1; border: none; padding: 0 1; background: $panel;
        &:focus { border: none; background: $primary 20%; }
    }
    """

    async def on_key(self, event: events.Key) -> None:
        """Leave what types nothing to whoever has bound it."""
        if event.is_printable and not typed_by(event):
            event.prevent_default()
