"""The chat: what was said, in order. Follows the end until the user scrolls up."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget
from textual.widgets import Markdown

from specchat.engine.text import visible
from specchat.tui.chat import Turn
from specchat.tui.widgets.reply_view import ReplyView
from specchat.tui.widgets.tinted import Tinted

LONGEST_SHOWN_LINES = 24

KEPT_LINES = 200
"""Lines that stay on the page when it is pruned: laying out more costs every frame of a reply."""

SLACK_LINES = 100
"""How far the page may outgrow that before it is pruned."""

OLDER_AT_ONCE = 12


class UserView(Vertical):
    """What the user said; a long paste is folded."""

    DEFAULT_CSS = """
    UserView { height: auto; margin: 0 0 1 0; padding: 0 1; border-left: outer $accent 70%; background: $surface; }
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def compose(self) -> ComposeResult:
        """The first lines, and how many more there are."""
        lines = visible(self.text).split("\n")
        yield Tinted([("\n".join(lines[:LONGEST_SHOWN_LINES]), "text")])
        if len(lines) > LONGEST_SHOWN_LINES:
            yield Tinted([(f"… {len(lines) - LONGEST_SHOWN_LINES:,} more lines", "dim")])


class OlderView(Tinted):
    """Stands for messages that are not on the page."""

    DEFAULT_CSS = """
    OlderView { margin: 0 0 1 0; padding: 0 1 0 2; &:hover { background: $surface; } }
    """

    class Asked(Message):
        """The user wants to see them."""

    def on_click(self) -> None:
        """Ask for them."""
        self.post_message(self.Asked())


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
        yield Tinted([(visible(self.text), self._role)])


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
        Binding("G,shift+g", "edge(False)", "last message", show=False, id="transcript.last"),
        Binding("c", "copy_message", "copy message", show=False, id="transcript.copy"),
        Binding("r", "regenerate", "answer again", show=False, id="transcript.retry"),
    ]

    chosen: reactive[int | None] = reactive(None)
    """Which message the keys point at; None: the end."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._older: list[Turn] = []

    def watch_virtual_size(self) -> None:
        """Follow the end as soon as there is more than fits; until then the chat begins at the top."""
        if self.max_scroll_y > 0 and not self.is_anchored:
            self.anchor()

    def watch_chosen(self, before: int | None, now: int | None) -> None:
        """Move the highlight, and the view with it."""
        views = self.views
        for index, chosen in ((before, False), (now, True)):
            if index is not None and index < len(views):
                views[index].set_class(chosen, "-chosen")
                if chosen:
                    views[index].scroll_visible(animate=False, top=True)

    class CopyAsked(Message):
        """The user wants this text in the clipboard."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class RegenerateAsked(Message):
        """The user wants the last question answered again."""

    async def on_older_view_asked(self) -> None:
        """Bring back some of what was pruned."""
        await self.show_older()

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

    def action_move(self, step: int) -> None:
        """Point at the next or previous message."""
        last = len(self.views) - 1
        if last < 0:
            return
        if self.chosen is None:
            self.chosen = last
        elif step < 0 and self.chosen == 0 and self._older:
            self.call_later(self.show_older)
        elif step > 0 and self.chosen == last:
            self.action_edge(False)
        else:
            self.chosen = max(0, min(last, self.chosen + step))

    def action_edge(self, first: bool) -> None:
        """Point at the first message, or go to the end and follow it."""
        if first:
            self.chosen = 0 if self.views else None
            self.scroll_home(animate=False)
            self.call_later(self.show_older)
        else:
            self.chosen = None
            self.follow()

    def action_copy_message(self) -> None:
        """Copy the message pointed at, or the last one."""
        if self.views:
            self.post_message(self.CopyAsked(self.text_of(self.chosen_view() or self.views[-1])))

    def action_regenerate(self) -> None:
        """Ask for another answer to the last question."""
        self.post_message(self.RegenerateAsked())

    @property
    def views(self) -> list[Widget]:
        """Messages, oldest first."""
        return [child for child in self.children if isinstance(child, UserView | ReplyView)]

    def chosen_view(self) -> Widget | None:
        """The message the keys point at."""
        return self.views[self.chosen] if self.chosen is not None and self.chosen < len(self.views) else None

    def reply_view(self) -> ReplyView | None:
        """The reply the keys point at, or the last one."""
        if isinstance(view := self.chosen_view(), ReplyView):
            return view
        return next((view for view in reversed(self.views) if isinstance(view, ReplyView)), None)

    async def show(self, turn: Turn) -> None:
        """Add one message at the end."""
        await self.mount(_view_of(turn))

    async def prune(self) -> None:
        """Take the oldest messages off a page that has grown too long; a line says how many."""
        if self.virtual_size.height <= KEPT_LINES + SLACK_LINES:
            return
        views, lines, leaving = self.views, 0, 0
        for index in reversed(range(len(views))):
            lines += views[index].outer_size.height + 1
            if lines > KEPT_LINES:
                leaving = index
                break
        self.chosen = None
        self._older += [_turn_of(view) for view in views[:leaving]]
        await self.remove_children(views[:leaving])
        await self._count_older()

    async def show_older(self) -> None:
        """Put some pruned messages back at the top; what is being read stays where it is."""
        if not self._older:
            return
        turns = self._older[-OLDER_AT_ONCE:]
        del self._older[-OLDER_AT_ONCE:]
        self.release_anchor()
        below = self.max_scroll_y - self.scroll_y
        views = [_view_of(turn) for turn in turns]
        await self.mount_all(views, before=self.views[0])
        await self._count_older()
        self.chosen = None
        self.call_after_refresh(lambda: self.scroll_to(y=self.max_scroll_y - below, animate=False, immediate=True))

    async def _count_older(self) -> None:
        await self.query(OlderView).remove()
        if self._older:
            count = len(self._older)
            await self.mount(OlderView([(f"▲ {count} older messages", "dim")]), before=0)

    async def note(self, text: str, role: str = "dim") -> None:
        """Add a line from the app."""
        await self.mount(NoteView(text, role))

    async def clear(self) -> None:
        """Begin with an empty page."""
        self.chosen = None
        self._older.clear()
        await self.remove_children()
        self.from_top()

    def follow(self) -> None:
        """Go to the end and stay there."""
        if self.max_scroll_y > 0:
            self.anchor()

    def from_top(self) -> None:
        """Begin at the top until there is more than fits (an anchored page would hang at the bottom)."""
        self.anchor(False)
        self.scroll_to(y=0, animate=False, immediate=True, force=True)

    def _settle(self) -> None:
        if self.max_scroll_y <= 0 and self.is_anchored:
            self.from_top()

    @staticmethod
    def text_of(view: Widget) -> str:
        """A message's text, safe to paste anywhere."""
        return visible(view.reply.text if isinstance(view, ReplyView) else getattr(view, "text", ""))


def _view_of(turn: Turn) -> ReplyView | UserView:
    return ReplyView(turn.reply) if turn.reply else UserView(turn.content)


def _turn_of(view: Widget) -> Turn:
    if isinstance(view, ReplyView):
        return Turn("assistant", reply=view.reply)
    return Turn("user", getattr(view, "text", ""))
