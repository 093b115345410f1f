"""The messages that are mounted as widgets: a window of the chat around the reading position.

Layout takes time in proportion to the mounted messages, so a chat of ten thousand messages is never mounted whole:
messages are removed at one end as others are mounted at the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from textual.containers import VerticalScroll
from textual.layout import WidgetPlacement
from textual.message import Message
from textual.widget import Widget

from specchat.tui.state.turn import Turn
from specchat.tui.textual_patches.widget_parts import scroll_silently
from specchat.tui.widgets.messages import MessageView, NewerView, OlderView, UserView, lines_of, view_of
from specchat.tui.widgets.reply_view import ReplyView

KEPT_LINES = 200
"""Lines that stay mounted when the page is pruned."""

SLACK_LINES = 100
"""Lines beyond these before the page is pruned."""

STEP_LINES = 40
"""About how many lines are mounted when the user reaches an end of the page."""


class MountedPage(VerticalScroll):
    """The turns before the page, the mounted views, and the turns after the page: together the whole chat."""

    class Shortened(Message):
        """Messages were removed from the page."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.older: list[Turn] = []
        self.newer: list[Turn] = []  # the next one last
        self.reading = ReadingPosition(self)

    @property
    def views(self) -> list[MessageView]:
        """Messages on the page, oldest first."""
        return [child for child in self.children if isinstance(child, UserView | ReplyView)]

    @property
    def turns(self) -> list[Turn]:
        """The whole chat, oldest first."""
        return [*self.older, *(view.turn for view in self.views), *reversed(self.newer)]

    async def open(self, turns: Sequence[Turn], at_start: bool = False) -> None:
        """Mount the last of these turns (or the first), and keep the rest unmounted."""
        await self._remove(self.children)
        self.older, self.newer = [], []
        if at_start:
            self.newer = list(reversed(turns))
            await self._mount(self._take_turns(self.newer, self._kept_lines()))
        else:
            self.older = list(turns)
            await self._mount(self._take_turns(self.older, self._kept_lines())[::-1])
        await self._update_ends()

    async def show(self, turn: Turn) -> None:
        await self.to_end()
        await self._mount([turn])

    async def change(self, turns: Sequence[Turn]) -> None:
        """Show another chat or branch; the turns that both have in common stay mounted."""
        views = self.views
        before = [*self.older, *(view.turn for view in views)]
        shorter = min(len(before), len(turns))
        kept = next((at for at in range(shorter) if before[at] is not turns[at]), shorter) - len(self.older)
        if kept < 1:
            await self.open(turns)
            return
        self.newer = list(reversed(turns[len(self.older) + kept :]))
        await self._remove(views[kept:])
        await self._mount(self._take_turns(self.newer, self._kept_lines()))
        await self._update_ends()

    async def to_start(self) -> None:
        if self.older:
            await self.open(self.turns, at_start=True)

    async def to_end(self) -> None:
        if self.newer:
            await self.open(self.turns)

    async def show_older(self, lines: int) -> bool:
        """Mount some older messages and remove the newest; False where there are none."""
        if turns := self._take_turns(self.older, lines)[::-1]:
            leaving = self._past_kept_lines(self.views)
            self.newer += [view.turn for view in reversed(leaving)]
            await self._remove(leaving)
            await self._mount(turns, first=True)
            await self._update_ends()
        return bool(turns)

    async def show_newer(self, lines: int) -> bool:
        """Mount some newer messages and remove the oldest; False where there are none."""
        if turns := self._take_turns(self.newer, lines):
            await self._mount(turns)
            await self._remove_oldest()
            await self._update_ends()
        return bool(turns)

    async def prune(self) -> None:
        """Remove the oldest messages of a page that has grown too long; a line shows how many."""
        if self.virtual_size.height > self._kept_lines() + SLACK_LINES:
            await self._remove_oldest()
        await self._update_ends()

    async def clear(self) -> None:
        self.older, self.newer = [], []
        await self._remove(self.children)

    def _kept_lines(self) -> int:
        """Lines that stay mounted: at least two windows."""
        return max(KEPT_LINES, 2 * self.size.height)

    def _take_turns(self, turns: list[Turn], lines: int) -> list[Turn]:
        """Take turns off the end of a list until they fill so many lines; one at least, if there is one."""
        taken: list[Turn] = []
        width = self.size.width - 4
        while turns and lines > 0:
            taken.append(turns.pop())
            lines -= lines_of(taken[-1], width)
        return taken

    def _past_kept_lines(self, views: list[MessageView]) -> list[MessageView]:
        """The views after the first kept lines, in this order."""
        lines = 0
        for index, view in enumerate(views):
            lines += view.outer_size.height + 1
            if lines > self._kept_lines():
                return views[index:] if index else views[1:]
        return []

    async def _remove_oldest(self) -> None:
        leaving = self._past_kept_lines(self.views[::-1])[::-1]
        self.older += [view.turn for view in leaving]
        await self._remove(leaving)

    async def _remove(self, views: Sequence[Widget]) -> None:
        if views:
            await self.remove_children(list(views))
            self.post_message(self.Shortened())

    async def _mount(self, turns: Sequence[Turn], first: bool = False) -> None:
        views = [view_of(turn) for turn in turns]
        with self.app.batch_update():  # a reply is not drawn before its blocks are complete
            await self.mount_all(views, before=self.views[0] if first and self.views else None)

    async def _update_ends(self) -> None:
        ends: list[tuple[type[OlderView], int, int | None]] = [
            (OlderView, len(self.older), 0), (NewerView, len(self.newer), None),
        ]  # fmt: skip
        for kind, count, before in ends:
            shown = next((child for child in self.children if type(child) is kind), None)
            if count and shown is None:
                shown = kind()
                await self.mount(shown, before=before)
            if count and isinstance(shown, OlderView):
                shown.count(count)
            elif shown is not None:
                await shown.remove()


class ReadingPosition:
    """The topmost visible message, and how many of its lines are above the window."""

    def __init__(self, page: VerticalScroll) -> None:
        self._page = page
        self._position: tuple[Widget, int] | None = None

    def clear(self) -> None:
        self._position = None

    def remember(self, views: Iterable[Widget]) -> None:
        """Take the topmost visible one of these views as the reading position."""
        top = round(self._page.scroll_y)
        view = next((view for view in views if view.virtual_region.bottom > top), None)
        self._position = None if view is None else (view, top - view.virtual_region.y)

    def restore(self, placements: Iterable[WidgetPlacement], lowest: int) -> None:
        """During a layout: scroll so that the same lines are visible, at most down to `lowest`."""
        if self._position is None:
            return
        view, above = self._position
        for placement in placements:
            if placement.widget is view:
                scroll_silently(self._page, max(0, min(placement.region.y + above, lowest)))
