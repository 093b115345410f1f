"""The part of a chat that is mounted: a page around what is being read, turned at both ends.

Laying out a page costs every frame in which it changes, so a chat of ten thousand messages must not be laid out:
messages leave at the far end as others come in at the near one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual.widget import Widget

from specchat.tui.state.turn import Turn
from specchat.tui.widgets.messages import MessageView, NewerView, OlderView, lines_of, view_of

if TYPE_CHECKING:
    from specchat.tui.widgets.transcript import Transcript

KEPT_LINES = 200
"""Lines that stay on a page that is pruned."""

SLACK_LINES = 100
"""How far a page may outgrow that before it is pruned."""

TURNED_LINES = 40
"""About how many lines a turn of the page brings."""


class Page:
    """Turns before the page, the views on it, turns after it; together they are the whole chat."""

    def __init__(self, transcript: Transcript) -> None:
        self.older: list[Turn] = []
        self.newer: list[Turn] = []  # the next one last
        self._on = transcript

    @property
    def turns(self) -> list[Turn]:
        """The whole chat, oldest first."""
        return [*self.older, *(view.turn for view in self._on.views), *reversed(self.newer)]

    async def open(self, turns: Sequence[Turn], at_start: bool = False) -> None:
        """Mount the last of these turns (or the first), and keep the rest at hand."""
        await self._remove(self._on.children)
        self.older, self.newer = [], []
        if at_start:
            self.newer = list(reversed(turns))
            await self._mount(self._taken(self.newer, self._kept()))
        else:
            self.older = list(turns)
            await self._mount(self._taken(self.older, self._kept())[::-1])
        await self._count()

    async def add(self, turn: Turn) -> None:
        """Show one more turn at the end of the chat."""
        await self.to_end()
        await self._mount([turn])

    async def change(self, turns: Sequence[Turn]) -> None:
        """Show another chat, or another branch of this one; what both begin with stays where it is."""
        views = self._on.views
        before = [*self.older, *(view.turn for view in views)]
        common = next((i for i, (a, b) in enumerate(zip(before, turns, strict=False)) if a is not b), None)
        kept = (min(len(before), len(turns)) if common is None else common) - len(self.older)
        if kept < 1:
            await self.open(turns)
            return
        self.newer = list(reversed(turns[len(self.older) + kept :]))
        await self._remove(views[kept:])
        await self._mount(self._taken(self.newer, self._kept()))
        await self._count()

    async def to_start(self) -> None:
        """Turn to the first message."""
        if self.older:
            await self.open(self.turns, at_start=True)

    async def to_end(self) -> None:
        """Turn to the last message."""
        if self.newer:
            await self.open(self.turns)

    async def back(self, lines: int) -> bool:
        """Bring some older messages, let the newest go; False where there are none."""
        turns = self._taken(self.older, lines)[::-1]
        if not turns:
            return False
        leaving = self._beyond(self._on.views)
        self.newer += [view.turn for view in reversed(leaving)]
        await self._remove(leaving)
        await self._mount(turns, first=True)
        await self._count()
        return True

    async def forth(self, lines: int) -> bool:
        """Bring some newer messages, let the oldest go; False where there are none."""
        turns = self._taken(self.newer, lines)
        if not turns:
            return False
        await self._mount(turns)
        await self.prune(turning=True)
        return True

    async def prune(self, turning: bool = False) -> None:
        """Take the oldest messages off a page that has grown too long."""
        if turning or self._on.virtual_size.height > self._kept() + SLACK_LINES:
            leaving = self._beyond(self._on.views[::-1])[::-1]
            self.older += [view.turn for view in leaving]
            await self._remove(leaving)
        await self._count()

    async def clear(self) -> None:
        """Begin with nothing."""
        self.older, self.newer = [], []
        await self._remove(self._on.children)

    def _kept(self) -> int:
        """Never less than the window shows, and something to scroll to."""
        return max(KEPT_LINES, 2 * self._on.size.height)

    def _taken(self, turns: list[Turn], lines: int) -> list[Turn]:
        """Take turns off the end of a list until they fill so many lines; one at least, if there is one."""
        taken: list[Turn] = []
        width = self._on.size.width - 4
        while turns and lines > 0:
            taken.append(turns.pop())
            lines -= lines_of(taken[-1], width)
        return taken

    def _beyond(self, views: list[MessageView]) -> list[MessageView]:
        """Those of these views, in this order, that come after the lines that are kept."""
        lines = 0
        for index, view in enumerate(views):
            lines += view.outer_size.height + 1
            if lines > self._kept():
                return views[index:] if index else views[1:]
        return []

    async def _remove(self, views: Sequence[Widget]) -> None:
        if views:
            await self._on.remove_children(list(views))
            self._on.post_message(self._on.Shortened())

    async def _mount(self, turns: Sequence[Turn], first: bool = False) -> None:
        views = [view_of(turn) for turn in turns]
        with self._on.app.batch_update():  # a reply is not seen until its blocks are complete
            await self._on.mount_all(views, before=self._on.views[0] if first and self._on.views else None)

    async def _count(self) -> None:
        """Say at both ends how much is not on the page."""
        ends: list[tuple[type[OlderView], int, int | None]] = [
            (OlderView, len(self.older), 0), (NewerView, len(self.newer), None),
        ]  # fmt: skip
        for kind, count, before in ends:
            shown = next((child for child in self._on.children if type(child) is kind), None)
            if count and shown is None:
                shown = kind()
                await self._on.mount(shown, before=before)
            if count and isinstance(shown, OlderView):
                shown.count(count)
            elif shown is not None:
                await shown.remove()
