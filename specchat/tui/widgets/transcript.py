"""The transcript of the chat. It follows the end until the user scrolls up."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.binding import BindingType
from textual.geometry import Size
from textual.layout import DockArrangeResult
from textual.message import Message
from textual.reactive import Reactive, reactive
from textual.widgets import Markdown

from specchat.tui.state.turn import Turn
from specchat.tui.text.key_names import bind
from specchat.tui.text.markdown_blocks import code_blocks
from specchat.tui.textual_patches.widget_parts import begin_following, is_following, stop_following
from specchat.tui.widgets.messages import MessageView, OlderView, text_of
from specchat.tui.widgets.mounted_page import STEP_LINES, MountedPage
from specchat.tui.widgets.reply_view import ReplyView

AHEAD_PAGES = 2
"""Window heights of text that stay mounted ahead in the direction of scrolling, so that messages come in unseen."""


class Transcript(MountedPage):
    """All messages; with the focus, keys move between them."""

    DEFAULT_CSS = """
    Transcript { width: 1fr; height: 1fr; padding: 1 1 0 1; scrollbar-size-vertical: 1; }
    Transcript > .-chosen { background: $panel; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("j", "move(1)", "next message", "transcript.next"),
        bind("k", "move(-1)", "previous message", "transcript.previous"),
        bind("g", "edge(True)", "first message", "transcript.first"),
        bind("G,shift+g", "edge(False)", "to the end, and follow it", "transcript.last"),
        bind("n", "find_again", "the message before with what /find found", "transcript.find_again"),
        bind("c", "copy_message", "copy this message, else the last", "transcript.copy"),
        bind("o", "unfold", "open or fold thoughts, files, long texts", "transcript.unfold"),
        bind("y", "copy_code", "copy the message's last code block", "transcript.code"),
        bind("r", "regenerate", "answer this question again, else the last", "transcript.retry"),
        bind("e", "edit", "say this message, else the last, another way", "transcript.edit"),
        bind("E,shift+e", "edit(True)", "edit this reply's text, else the last", "transcript.edit_reply"),
        bind("left", "token(-1)", "the token before, from the reply's end on", "transcript.token_before"),
        bind("right", "token(1)", "the token after, from the reply's beginning on", "transcript.token_after"),
        bind("up", "token_line(-1)", "the line of tokens above", "transcript.token_up"),
        bind("down", "token_line(1)", "the line of tokens below", "transcript.token_down"),
        bind("enter", "enter", "what else could stand there; goes on from it", "transcript.alternatives"),
        bind("left_square_bracket", "switch(-1)", "the branch before this one", "transcript.left"),
        bind("right_square_bracket", "switch(1)", "the branch after this one", "transcript.right"),
    ]

    virtual_size = Reactive(Size(0, 0), repaint=False)
    """Without the second layout that Textual requests after every change; scrollbars request it themselves."""

    chosen: reactive[int | None] = reactive(None)
    """Which message the keys point at; None: the end."""

    @dataclass
    class Pointed(Message):
        turn: Turn

    @dataclass
    class TokenPointed(Message):
        """The keys point at a token of this reply; `entered`: what else could stand there is to be shown."""

        view: ReplyView
        entered: bool = False

    @dataclass
    class Found(Message):
        """The message pointed at is the `number`-th of `count` that have these words; count 0: none has."""

        words: str
        number: int
        count: int

    @dataclass
    class CopyAsked(Message):
        text: str  # empty if there is none
        what: str = "message"

    @dataclass
    class RegenerateAsked(Message):
        """The user wants a question answered again: this one, the one that this reply answers, or the last."""

        turn: Turn | None

    @dataclass
    class EditAsked(Message):
        """The user wants to say this differently (or what was said last); `reply`: to edit the reply's text."""

        turn: Turn | None
        reply: bool

    @dataclass
    class SwitchAsked(Message):
        """The user wants to see another branch at this turn, or at the last turn with several."""

        turn: Turn | None
        step: int

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._turning = asyncio.Lock()
        self.sought = ""  # the words that `find` looked for last

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Nothing is found again before something was sought; without a token pointed at, keys scroll."""
        if action in ("token_line", "enter"):
            return self.token_view is not None
        return bool(self.sought) if action == "find_again" else True

    def watch_chosen(self, before: int | None, now: int | None) -> None:
        views = self.views
        for index, chosen in ((before, False), (now, True)):
            if index is not None and index < len(views):
                views[index].set_class(chosen, "-chosen")
                if chosen:
                    views[index].scroll_visible(animate=False, top=True)
                    self.post_message(self.Pointed(views[index].turn))

    async def on_older_view_clicked(self, event: OlderView.Clicked) -> None:
        await self.turn_page(event.step)

    def on_blur(self) -> None:
        if len(self.app.screen_stack) == 1:  # a page above the chat returns here
            self.chosen = None
            self.leave_token()

    def on_markdown_link_clicked(self, event: Markdown.LinkClicked) -> None:
        """Open web pages only: the link was written by a model."""
        event.stop()
        if event.href.startswith(("https://", "http://")):
            self.app.open_url(event.href)

    async def action_move(self, step: int) -> None:
        if not self.views:
            return
        chosen = len(self.views) if self.chosen is None else self.chosen
        if not 0 <= chosen + step < len(self.views):
            if await self.turn_page(step) and self.chosen is not None:
                chosen = self.chosen
            elif step > 0:
                await self.action_edge(False)
                return
        self.chosen = max(0, min(len(self.views) - 1, chosen + step))

    async def action_edge(self, first: bool) -> None:
        """Point at the first message, or go to the end and follow it."""
        self.chosen = None
        if first:
            await self.to_start()
            self.chosen = 0 if self.views else None
            self.scroll_home(animate=False)
        else:
            await self.to_end()
            self.follow()

    async def find(self, words: str) -> None:
        """Point at the last message with these words, or at the one before the message pointed at; wraps around."""
        self.sought = words
        turns, sought = self.turns, words.casefold()
        with_words = [at for at, turn in enumerate(turns) if sought in turn.message().content.casefold()]
        if not with_words:
            self.post_message(self.Found(words, 0, 0))
            return
        chosen = self.chosen_turn()
        here = turns.index(chosen) if chosen is not None else len(turns)
        at = max((at for at in with_words if at < here), default=with_words[-1])
        while (place := at - len(self.older)) < 0 or place >= len(self.views):
            if not await self.turn_page(-1 if place < 0 else 1):
                return
        self.chosen = place
        self.post_message(self.Found(words, with_words.index(at) + 1, len(with_words)))

    async def action_find_again(self) -> None:
        await self.find(self.sought)

    @property
    def token_view(self) -> ReplyView | None:
        """The reply of which the keys point at a token."""
        view = self.reply_view()
        return view if view is not None and view.cursor is not None else None

    def action_token(self, step: int) -> None:
        """Point at the token before or after, of the message pointed at, or of the last reply."""
        if (view := self.reply_view()) is not None and view.move_cursor(step):
            self._point_at_token(view)

    def action_token_line(self, step: int) -> None:
        if (view := self.token_view) is not None and view.move_cursor(step, lines=True):
            self._point_at_token(view)

    def action_enter(self) -> None:
        if (view := self.token_view) is not None:
            self.post_message(self.TokenPointed(view, entered=True))

    def leave_token(self) -> bool:
        """False if no token was pointed at."""
        pointed = [view for view in self.views if isinstance(view, ReplyView) and view.cursor is not None]
        for view in pointed:
            view.leave_cursor()
        return bool(pointed)

    def on_reply_view_token_chosen(self, event: ReplyView.TokenChosen) -> None:
        self.focus(scroll_visible=False)
        self._point_at_token(event.view)
        if event.again:
            self.action_enter()

    def _point_at_token(self, view: ReplyView) -> None:
        """Point at this reply alone, and keep the line with its token in view."""
        if view in self.views and self.chosen != self.views.index(view):
            self.set_reactive(Transcript.chosen, self.views.index(view))
            self.post_message(self.Pointed(view.turn))
        self.post_message(self.TokenPointed(view))
        self.release_anchor()
        self.call_after_refresh(self._scroll_to_token, view)

    def _scroll_to_token(self, view: ReplyView) -> None:
        if (line := view.cursor_line) is not None:
            room = self.content_region
            over, under = room.y - line.y, line.bottom - room.bottom
            if over > 0 or under > 0:
                self.scroll_relative(y=-over if over > 0 else under, animate=False, immediate=True)

    def action_copy_message(self) -> None:
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
        self.post_message(self.RegenerateAsked(self.chosen_turn()))

    def action_edit(self, reply: bool = False) -> None:
        self.post_message(self.EditAsked(self.chosen_turn(), reply))

    def action_switch(self, step: int) -> None:
        self.post_message(self.SwitchAsked(self.chosen_turn(), step))

    def unfinished_replies(self) -> list[ReplyView]:
        return [view for view in self.views if isinstance(view, ReplyView) and not view.ended]

    def chosen_view(self) -> MessageView | None:
        return self.views[self.chosen] if self.chosen is not None and self.chosen < len(self.views) else None

    def chosen_turn(self) -> Turn | None:
        view = self.chosen_view()
        return view.turn if view else None

    def reply_view(self) -> ReplyView | None:
        """The reply the keys point at, or the last one."""
        if isinstance(view := self.chosen_view(), ReplyView):
            return view
        return next((view for view in reversed(self.views) if isinstance(view, ReplyView)), None)

    def toggle_tokens(self) -> None:
        if view := self.reply_view():
            view.token_view = not view.token_view

    async def restore(self, turns: Sequence[Turn]) -> None:
        """Show these messages; of a long chat the last ones, and more as the user scrolls."""
        with self.app.batch_update():  # drawn once it is complete
            await self.clear()
            await self.open(turns)

    async def change(self, turns: Sequence[Turn]) -> None:
        with self.app.batch_update():
            await super().change(turns)

    async def prune(self) -> None:
        self.chosen = None
        await super().prune()

    async def turn_page(self, step: int, lines: int = STEP_LINES) -> bool:
        """Mount older or newer messages and keep the reading position. False where there are none."""
        async with self._turning:
            chosen = self.chosen_view()
            turned = await (self.show_older(lines) if step < 0 else self.show_newer(lines))
            kept = self.views.index(chosen) if chosen in self.views else None
            self.set_reactive(Transcript.chosen, kept)
        return turned

    async def clear(self) -> None:
        self.chosen = None
        self.reading.clear()
        await super().clear()
        self.start_at_top()

    def follow(self) -> None:
        self.reading.clear()
        if self.max_scroll_y > 0:
            self.anchor()

    def start_at_top(self) -> None:
        """Scroll to the top and stop following the end: an anchored page that fits would be drawn at the bottom."""
        self.anchor(False)
        self.scroll_to(y=0, animate=False, immediate=True, force=True)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Save the reading position; mount more messages near the ends of the page."""
        super().watch_scroll_y(old_value, new_value)
        if self.newer:
            self.release_anchor()  # the end of the page is not the end of the chat
        if is_following(self):
            self.reading.clear()
            return
        self.reading.remember(self.views)
        if new_value != old_value:
            self.call_later(self._mount_ahead, -1 if new_value < old_value else 1)

    def arrange(self, size: Size, optimal: bool = False) -> DockArrangeResult:
        """Lay out and keep the reading position.

        The end is followed as long as the chat is higher than the window; a chat that fits begins at the top.
        """
        result = super().arrange(size, optimal)
        lowest = result.spatial_map.total_region.bottom - size.height
        if lowest > 0:
            begin_following(self)
        elif result.placements:  # an empty page is about to be filled
            stop_following(self)
        self.reading.restore(result.placements, lowest)
        return result

    async def _mount_ahead(self, step: int) -> None:
        """Mount one message ahead of the scrolling, and the next after it was drawn, until there are enough."""
        left = self.scroll_y if step < 0 else self.max_scroll_y - self.scroll_y
        if left < AHEAD_PAGES * self.size.height and not self._turning.locked() and await self.turn_page(step, lines=1):
            self.call_after_refresh(self._mount_ahead, step)
