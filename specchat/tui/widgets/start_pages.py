"""The pages that the transcript shows before the first message: the welcome page, and the tour in its place."""

from __future__ import annotations

from collections.abc import Callable

from specchat.tui.ports import KeyNames
from specchat.tui.state.chat import Chat
from specchat.tui.tree import Marks
from specchat.tui.tree.growing_tree import GrowingTree
from specchat.tui.widgets.tour import TourView
from specchat.tui.widgets.transcript import Transcript
from specchat.tui.widgets.welcome import Welcome


class StartPages:
    """Mounts and removes the two pages in the transcript."""

    def __init__(self, chat: Chat, transcript: Transcript, marks: Marks) -> None:
        self._chat, self._transcript, self._marks = chat, transcript, marks
        self._tree: GrowingTree | None = None

    @property
    def welcome_shown(self) -> bool:
        """Whether the welcome page is mounted."""
        return bool(self._transcript.query(Welcome))

    @property
    def tour_shown(self) -> bool:
        """Whether the tour is mounted."""
        return bool(self._transcript.query(TourView))

    async def show_welcome(self) -> None:
        """Mount the welcome page."""
        page = Welcome(self._chat, self._marks)
        await self._transcript.mount(page)
        if self._tree is not None:
            page.play(self._tree)

    def play(self, tree: GrowingTree) -> None:
        """Show this tree on the welcome page from now on."""
        self._tree = tree
        for page in self._transcript.query(Welcome):
            page.play(tree)

    def hold_tree(self) -> None:
        """Let the tree stand as it is."""
        if self._tree is not None:
            self._tree.held = True

    async def remove_welcome(self) -> None:
        """Remove the welcome page, if it is mounted, and begin the chat at the top."""
        if self.welcome_shown:
            await self._transcript.query(Welcome).remove()
            self._transcript.start_at_top()

    def repaint_welcome(self) -> None:
        """Draw the progress on the welcome page, if it is mounted."""
        for page in self._transcript.query(Welcome):
            page.repaint()

    async def show_tour(self, key_of: KeyNames, help_of: Callable[[str], str]) -> None:
        """Mount the first page of the tour, in place of the welcome page or below the chat."""
        await self._transcript.query("Welcome, TourView").remove()
        view = TourView(key_of, help_of)
        view.set_class(bool(self._transcript.views), "-below")
        await self._transcript.mount(view)
        self._transcript.scroll_end(animate=False)

    def next_tour_page(self) -> bool:
        """Show the next page of the tour; False after the last one."""
        return all(view.next_page() for view in self._transcript.query(TourView))

    async def remove_tour(self) -> None:
        """Remove the tour; the welcome page comes back if the chat is empty."""
        await self._transcript.query(TourView).remove()
        if not self._transcript.views and not self.welcome_shown:
            await self.show_welcome()
