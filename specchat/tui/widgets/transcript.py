"""The chat: what was said, in order. Follows the end until the user scrolls up."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.geometry import Size
from textual.layout import DockArrangeResult
from textual.message import Message
from textual.reactive import Reactive, reactive
from textual.scrollbar import ScrollBar
from textual.widget import Widget
from textual.widgets import Markdown

from specchat.tui.state.turn import Turn
from specchat.tui.text.markdown_blocks import code_blocks
from specchat.tui.widgets.messages import MessageView, NoteView, UserView, text_of
from specchat.tui.widgets.mounted_page import TURNED_LINES, Page
from specchat.tui.widgets.reply_view import ReplyView
from specchat.tui.widgets.welcome import Welcome

AHEAD_PAGES = 2
"""Windows of text that are kept mounted in the direction of reading: messages come one by one, before they are seen."""


class Transcript(VerticalScroll):
    """All messages; with the focus, keys move between them."""

    DEFAULT_CSS = """
    Transcript { width: 1fr; height: 1fr; padding: 1 1 0 1; scrollbar-size-vertical: 1; }
    Transcript > .-chosen { background: $panel; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "move(1)", "next message", show=False, id="transcript.next"),
        Binding("k", "move(-1)", "previous message", show=False, id="transcript.previous"),
        Binding("g", "edge(True)", "first message", show=False, id="transcript.first"),
        Binding("G,shift+g", "edge(False)", "to the end, and follow it", show=False, id="transcript.last"),
        Binding("c", "copy_message", "copy this message, else the last", show=False, id="transcript.copy"),
        Binding("o", "unfold", "open or fold thoughts, files, long texts", show=False, id="transcript.unfold"),
        Binding("y", "copy_code", "copy the message's last code block", show=False, id="transcript.code"),
        Binding("r", "regenerate", "answer this question again, else the last", show=False, id="transcript.retry"),
        Binding("e", "edit", "say this message, else the last, another way", show=False, id="transcript.edit"),
        Binding("left_square_bracket", "switch(-1)", "the branch before this one", show=False, id="transcript.left"),
        Binding("right_square_bracket", "switch(1)", "the branch after this one", show=False, id="transcript.right"),
    ]

    virtual_size = Reactive(Size(0, 0), repaint=False)
    """Textual's asks for a second layout after every layout that changed it; scrollbars ask for themselves."""

    chosen: reactive[int | None] = reactive(None)
    """Which message the keys point at; None: the end."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.page = Page(self)
        self._read: tuple[Widget, int] | None = None  # what is being read: a view, and lines of it above the window
        self._turning = asyncio.Lock()

    def watch_chosen(self, before: int | None, now: int | None) -> None:
        """Move the highlight, and the view with it."""
        views = self.views
        for index, chosen in ((before, False), (now, True)):
            if index is not None and index < len(views):
                views[index].set_class(chosen, "-chosen")
                if chosen:
                    views[index].scroll_visible(animate=False, top=True)

    class Shortened(Message):
        """Something was taken off the page."""

    class CopyAsked(Message):
        """The user wants this text in the clipboard; empty if there is none."""

        def __init__(self, text: str, what: str = "message") -> None:
            super().__init__()
            self.text = text
            self.what = what

    class RegenerateAsked(Message):
        """The user wants a question answered again: this one, the one that was answered so, or the last."""

        def __init__(self, turn: Turn | None) -> None:
            super().__init__()
            self.turn = turn

    class EditAsked(Message):
        """The user wants to say this differently (or what was said last)."""

        def __init__(self, turn: Turn | None) -> None:
            super().__init__()
            self.turn = turn

    class SwitchAsked(Message):
        """The user wants to read what was said in place of this (or of the last place where there is a choice)."""

        def __init__(self, turn: Turn | None, step: int) -> None:
            super().__init__()
            self.turn, self.step = turn, step

    async def on_older_view_asked(self) -> None:
        """Bring some older messages."""
        await self.turn(-1)

    async def on_newer_view_asked(self) -> None:
        """Bring some newer messages."""
        await self.turn(1)

    def on_resize(self) -> None:
        """A larger page may have room for everything."""
        self.call_after_refresh(self._settle)

    def on_blur(self) -> None:
        """The highlight belongs to the focus."""
        self.chosen = None

    def on_markdown_link_clicked(self, event: Markdown.LinkClicked) -> None:
        """Open web pages only: the link was written by a model."""
        event.stop()
        if event.href.startswith(("https://", "http://")):
            self.app.open_url(event.href)

    async def action_move(self, step: int) -> None:
        """Point at the next or previous message."""
        if not self.views:
            return
        chosen = len(self.views) if self.chosen is None else self.chosen
        if not 0 <= chosen + step < len(self.views):
            if await self.turn(step) and self.chosen is not None:
                chosen = self.chosen
            elif step > 0:
                await self.action_edge(False)
                return
        self.chosen = max(0, min(len(self.views) - 1, chosen + step))

    async def action_edge(self, first: bool) -> None:
        """Point at the first message, or go to the end and follow it."""
        self.chosen = None
        if first:
            await self.page.to_start()
            self.chosen = 0 if self.views else None
            self.scroll_home(animate=False)
        else:
            await self.page.to_end()
            self.follow()

    def action_copy_message(self) -> None:
        """Copy the message pointed at, or the last one."""
        if self.views:
            self.post_message(self.CopyAsked(text_of(self.chosen_view() or self.views[-1])))

    def action_unfold(self) -> None:
        """Open or fold what is folded in the message pointed at, or in the last one."""
        if self.views:
            view = self.chosen_view() or self.views[-1]
            view.unfolded = not view.unfolded

    def action_copy_code(self) -> None:
        """Copy the last code block of the message pointed at, or of the last message that has any."""
        views = [view] if (view := self.chosen_view()) else self.views[::-1]
        codes = next((found for view in views if (found := code_blocks(text_of(view)))), [])
        several = f" {len(codes)} of {len(codes)}" if len(codes) > 1 else ""
        self.post_message(self.CopyAsked(codes[-1] if codes else "", f"code block{several}"))

    def action_regenerate(self) -> None:
        """Ask for another answer."""
        self.post_message(self.RegenerateAsked(self.chosen_turn()))

    def action_edit(self) -> None:
        """Ask to say a message differently."""
        self.post_message(self.EditAsked(self.chosen_turn()))

    def action_switch(self, step: int) -> None:
        """Ask for the branch beside this one."""
        self.post_message(self.SwitchAsked(self.chosen_turn(), step))

    @property
    def views(self) -> list[MessageView]:
        """Messages on the page, oldest first."""
        return [child for child in self.children if isinstance(child, UserView | ReplyView)]

    @property
    def welcome(self) -> Welcome | None:
        """What an empty chat shows, while it is empty."""
        return next((child for child in self.children if isinstance(child, Welcome)), None)

    def growing(self) -> list[ReplyView]:
        """Replies that are not shown to their end."""
        return [view for view in self.views if isinstance(view, ReplyView) and view.growing]

    def chosen_view(self) -> MessageView | None:
        """The message the keys point at."""
        return self.views[self.chosen] if self.chosen is not None and self.chosen < len(self.views) else None

    def chosen_turn(self) -> Turn | None:
        """The turn the keys point at."""
        view = self.chosen_view()
        return view.turn if view else None

    def reply_view(self) -> ReplyView | None:
        """The reply the keys point at, or the last one."""
        if isinstance(view := self.chosen_view(), ReplyView):
            return view
        return next((view for view in reversed(self.views) if isinstance(view, ReplyView)), None)

    async def restore(self, turns: Sequence[Turn]) -> None:
        """Show these messages and no others; of a long chat the last ones, more of them as the reader moves."""
        with self.app.batch_update():  # seen once it is complete
            await self.clear()
            await self.page.open(turns)

    async def show(self, turn: Turn) -> None:
        """Add one message at the end."""
        await self.page.add(turn)

    async def change(self, turns: Sequence[Turn]) -> None:
        """Show another branch of the chat; what both begin with stays where it is."""
        with self.app.batch_update():
            await self.page.change(turns)
        self.call_after_refresh(self._settle)

    async def prune(self) -> None:
        """Take the oldest messages off a page that has grown too long; a line says how many."""
        self.chosen = None
        await self.page.prune()

    async def turn(self, step: int, lines: int = TURNED_LINES) -> bool:
        """Bring older or newer messages; what is being read stays where it is. False where there are none."""
        async with self._turning:
            chosen = self.chosen_view()
            turned = await (self.page.back(lines) if step < 0 else self.page.forth(lines))
            kept = self.views.index(chosen) if chosen in self.views else None
            self.set_reactive(Transcript.chosen, kept)
        return turned

    async def note(self, text: str, role: str = "dim") -> None:
        """Add a line from the app."""
        await self.mount(NoteView(text, role))

    async def clear(self) -> None:
        """Begin with an empty page."""
        self.chosen = self._read = None
        await self.page.clear()
        self.from_top()

    def follow(self) -> None:
        """Go to the end and stay there."""
        self._read = None
        if self.max_scroll_y > 0:
            self.anchor()

    def from_top(self) -> None:
        """Begin at the top until there is more than fits (an anchored page would hang at the bottom)."""
        self.anchor(False)
        self.scroll_to(y=0, animate=False, immediate=True, force=True)

    def _settle(self) -> None:
        if self.max_scroll_y <= 0 and self.is_anchored:
            self.from_top()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Remember what is being read; turn the page near its ends."""
        super().watch_scroll_y(old_value, new_value)
        if self.page.newer:
            self.release_anchor()  # the end of the page is not the end of the chat
        following = self._anchored and not self._anchor_released
        self._read = None if following else self._at_top()
        if new_value != old_value and not following:
            self.call_later(self._reach, -1 if new_value < old_value else 1)

    def arrange(self, size: Size, optimal: bool = False) -> DockArrangeResult:
        """What is being read stays where it is, whatever comes or goes around it.

        The end is followed as soon as there is more than fits; until then the chat begins at the top.
        """
        result = super().arrange(size, optimal)
        lowest = result.spatial_map.total_region.bottom - size.height
        if lowest > 0 and not self._anchored:
            self._anchored, self._anchor_released = True, False
        if self._read is not None:
            view, above = self._read
            for placement in result.placements:
                if placement.widget is view:
                    self._stay(max(0, min(placement.region.y + above, lowest)))
        return result

    async def _reach(self, step: int) -> None:
        """Mount one more message where the reader is going, and so on after it was drawn, until there are enough."""
        left = self.scroll_y if step < 0 else self.max_scroll_y - self.scroll_y
        if left < AHEAD_PAGES * self.size.height and not self._turning.locked() and await self.turn(step, lines=1):
            self.call_after_refresh(self._reach, step)

    def _at_top(self) -> tuple[Widget, int] | None:
        top = round(self.scroll_y)
        for child in self.children:
            if child.virtual_region.bottom > top and isinstance(child, UserView | ReplyView):
                return child, top - child.virtual_region.y
        return None

    def _stay(self, scroll_y: int) -> None:
        """Scroll without a word: this happens in the middle of a layout, which is about to draw."""
        self.set_reactive(Widget.scroll_y, scroll_y)
        self.set_reactive(Widget.scroll_target_y, scroll_y)
        self.vertical_scrollbar.set_reactive(ScrollBar.position, scroll_y)
