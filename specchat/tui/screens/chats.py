"""The screen of stored chats: search, open, rename, delete, export."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from datetime import datetime
from typing import ClassVar

from rich.cells import cell_len
from textual import work
from textual.binding import BindingType
from textual.content import Content
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from specchat.engine.protocol.text import visible
from specchat.errors import SpecchatError
from specchat.store.records import Summary
from specchat.tui.screens.page import Page
from specchat.tui.services.chat_archive import ChatArchive
from specchat.tui.state import stored_chat
from specchat.tui.system.desktop import format_of, named_path, stem_of, write_new_file
from specchat.tui.text import numbers
from specchat.tui.text.cells import cut
from specchat.tui.text.key_names import bind, label_of
from specchat.tui.widgets.prompt import LineInput
from specchat.tui.widgets.tinted_text import TintedText

_IN_SEARCH = "↑ ↓ choose · Enter opens · Tab to rename, delete, export"
_IN_LIST = {"rename": "rename", "delete": "delete", "undo": "undo", "export": "export", "search": "search"}


class ChatsScreen(Page[str | None]):
    """A search input and the chats that match, newest first; its result is the id of the chosen one."""

    DEFAULT_CSS = """
    ChatsScreen > Vertical { width: 100; height: 90%; }
    ChatsScreen Input { margin: 0 0 1 0; }
    ChatsScreen #ask { display: none; margin: 0; }
    ChatsScreen.-asking #ask { display: block; }
    ChatsScreen OptionList {
        height: 1fr; border: none; background: transparent; padding: 0; scrollbar-size-vertical: 1;
        &:focus { border: none; background-tint: transparent; }
        & > .option-list--option-highlighted { background: $panel; color: $foreground; text-style: none; }
        &:focus > .option-list--option-highlighted { background: $primary 25%; color: $foreground; text-style: none; }
    }
    ChatsScreen .remark { height: auto; padding: 0 1; display: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("escape", "back", "close", "chats.close"),
        bind("up", "move(-1)", "the chat above", "chats.up"),
        bind("down", "move(1)", "the chat below", "chats.down"),
        bind("slash", "search", "search", "chats.search"),
        bind("r", "ask('rename')", "rename this chat", "chats.rename"),
        bind("d,delete", "delete", "delete this chat", "chats.delete"),
        bind("u", "undo", "bring back what was deleted last", "chats.undo"),
        bind("e", "ask('export')", "export this chat to a file", "chats.export"),
    ]

    def __init__(
        self,
        archive: ChatArchive,
        words: str = "",
        current: str = "",
        now: Callable[[], datetime] = lambda: datetime.now().astimezone(),
    ) -> None:
        self._archive, self._current, self._now = archive, current, now
        self._found: list[Summary] = []
        self._asked = ""  # the action that the input at the bottom is for
        self._words = LineInput(words, placeholder="search", select_on_focus=False)
        self._options = OptionList()
        self._remark = TintedText(classes="remark")
        self._answer = LineInput(id="ask", select_on_focus=False)
        super().__init__(self._words, self._options, self._remark, self._answer)

    def on_mount(self) -> None:
        self._words.focus()
        self._load()

    def on_descendant_focus(self) -> None:
        close = self._key("close")
        if self._asked:
            said = f"Enter does it · {close} leaves it"
        elif isinstance(self.focused, OptionList):
            said = " · ".join(f"{key} {what}" for id, what in _IN_LIST.items() if (key := self._key(id)))
            said += f" · {close} closes"
        else:
            said = f"{_IN_SEARCH} · {close} closes"
        self.box.border_subtitle = said

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input is self._words:
            self._load()

    async def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.input is self._words:
            self._open()
            return
        chat, asked = self._chosen(), self._asked
        self._stop_asking()
        if chat is None or not event.value.strip():
            return
        try:
            if asked == "rename":
                await self._rename(chat, event.value.strip())
            else:
                file = named_path(event.value.strip())
                kind = format_of("", file, stored_chat.FORMATS)
                kept = await self._archive.ask(lambda chats: chats.chat(chat.id))
                await asyncio.to_thread(lambda: write_new_file(stored_chat.FORMATS[kind](*kept), file))
                self._say(f"written to {file.absolute()}", "good")
        except SpecchatError as error:
            self._say(str(error), "warn")

    def on_option_list_option_selected(self) -> None:
        self._open()

    def action_back(self) -> None:
        if self._asked:
            self._stop_asking()
        else:
            self.dismiss(None)

    def action_move(self, step: int) -> None:
        if self._options.highlighted is not None:
            self._options.highlighted += step

    def action_search(self) -> None:
        self._words.focus()

    def action_ask(self, what: str) -> None:
        if (chat := self._chosen()) is None:
            return
        line, self._asked = self._answer, what
        if what == "rename":
            line.value, line.placeholder, said = chat.title, "a name for this chat", "a new name:"
        else:
            kinds = "a file: .md, .html or .json"
            line.value, line.placeholder, said = f"{stem_of(chat.title, chat.id)}.md", kinds, f"to {kinds}"
        self._say(said)
        self.add_class("-asking")
        line.focus()

    async def action_delete(self) -> None:
        if (chat := self._chosen()) is not None:
            await self._set_deleted(chat, True)

    async def action_undo(self) -> None:
        if self._archive.deleted:
            await self._set_deleted(self._archive.deleted[-1], False)
        else:
            self._say("nothing was deleted here")

    async def _set_deleted(self, chat: Summary, deleted: bool) -> None:
        try:
            await self._archive.delete(chat, deleted)
        except SpecchatError as error:
            self._say(str(error), "warn")
            return
        title = repr(cut(visible(chat.title), 40))
        self._say(f"deleted {title} · {self._key('undo')} brings it back" if deleted else f"{title} is back")
        self._load()

    async def _rename(self, chat: Summary, title: str) -> None:
        if chat.id == self._current:
            self._archive.rename(title)
        await self._archive.change(lambda chats: chats.rename(chat.id, title))
        self._load()

    def _stop_asking(self) -> None:
        self._asked = ""
        self.remove_class("-asking")
        self._say("")
        self._options.focus()

    def _open(self) -> None:
        if (chat := self._chosen()) is not None:
            self.dismiss(chat.id)

    def _chosen(self) -> Summary | None:
        at = self._options.highlighted
        return self._found[at] if at is not None and at < len(self._found) else None

    @work(exclusive=True)
    async def _load(self) -> None:
        words = self._words.value
        try:
            self._found = await self._archive.ask(lambda chats: chats.summaries(words))
        except SpecchatError as error:
            self._found = []
            self._say(str(error), "warn")
        self.redraw()

    def redraw(self) -> None:
        words, options = self._words.value, self._options
        before = options.highlighted or 0
        now, width = self._now(), max(20, options.scrollable_content_region.width - 2)
        options.clear_options()
        options.add_options([Option(self._entry(chat, words, now, width)) for chat in self._found])
        options.highlighted = min(before, len(self._found) - 1) if self._found else None
        count = f"{len(self._found):,} found" if words.strip() else f"{len(self._found):,}"
        self.box.border_title = f"chats · {count}" if self._found or words.strip() else "chats"

    def _entry(self, chat: Summary, words: str, now: datetime, width: int) -> Content:
        mark, style = ("● ", "$success") if chat.id == self._current else ("  ", "")
        count = f"{chat.messages:,} message{'s' if chat.messages != 1 else ''} · " if width >= 48 else ""
        told = count + numbers.when(chat.updated, now)
        title = cut(visible(chat.title), max(8, width - len(told) - 4))
        gap = " " * max(1, width - 2 - cell_len(title) - len(told))
        preview = Content.styled(cut(visible(" ".join(chat.preview.split())), width - 2), "$foreground 70%")
        if found := re.findall(r"\w+", words):
            pattern = "(?i)" + "|".join(re.escape(word) for word in found)
            preview = preview.highlight_regex(pattern, style="$accent bold")
        return Content.assemble((mark, style), (title, "bold"), gap, (told, "$quiet-color"), "\n  ", preview, "\n")

    def _key(self, id: str) -> str:
        return label_of(self, f"chats.{id}").split(", ")[0]

    def _say(self, text: str, role: str = "dim") -> None:
        self._remark.display = bool(text)
        self._remark.set([(visible(text), role)])
