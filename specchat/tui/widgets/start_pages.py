"""The pages that the transcript shows before the first message: the welcome page, and the tour in its place."""

from __future__ import annotations

from contextlib import suppress

from textual.timer import Timer

from specchat.config import private_dir
from specchat.engine.client.replay import Recording
from specchat.engine.protocol.events import RoundDone
from specchat.errors import RecordingError
from specchat.tui.services.context import AppServices
from specchat.tui.tree.growing_tree import GrowingTree
from specchat.tui.widgets.tour import TourView
from specchat.tui.widgets.transcript import Transcript
from specchat.tui.widgets.tree_panel import TreePanel
from specchat.tui.widgets.welcome import Welcome


class StartPages:
    """Mounts and removes the two pages in the transcript."""

    def __init__(self, context: AppServices, transcript: Transcript, panel: TreePanel) -> None:
        self._context, self._transcript, self._panel = context, transcript, panel
        self._tree: GrowingTree | None = None
        self._timer: Timer | None = None  # of the next picture

    @property
    def welcome_shown(self) -> bool:
        return bool(self._transcript.query(Welcome))

    @property
    def offer_shown(self) -> bool:
        """Whether the welcome page names a better pair, which Enter takes."""
        return any(page.shows_offer for page in self._transcript.query(Welcome))

    @property
    def asks(self) -> bool:
        """Whether a question of the welcome page can be chosen now."""
        return self.welcome_shown and self._context.session.player is None

    @property
    def chat_is_empty(self) -> bool:
        """Whether the welcome page is shown, or will be once the tour is left."""
        return not self._transcript.views and self._context.session.player is None

    async def show_welcome(self) -> None:
        await self._transcript.mount(Welcome(self._context.chat, self._context.marks, lambda: self._panel.plays))
        self._play()

    def show_recorded_tree(self) -> None:
        """Let the trees of the demo's first reply grow, or show one of them where the app does not move."""
        recording = self._context.setup.demo
        if recording is None:
            return
        with suppress(RecordingError):  # the page does without
            demo = Recording.read(recording)
            rounds = [event for event in demo.replies()[0] if isinstance(event, RoundDone)]
            self._tree = tree = GrowingTree(rounds, demo.ready().target)
            if self._context.app.animation_level == "none":
                tree.show_branching()
            self._play()

    def _play(self) -> None:
        """Show the tree as it is, in the panel or where that has no room on the page, and what follows in a while.

        It ends with the two pages.
        """
        if self._timer is not None:
            self._timer.stop()
        tree = self._tree if self._transcript.query("Welcome, TourView") else None
        self._panel.play(tree)
        if tree is not None:
            for page in self._transcript.query(Welcome):
                page.show_tree(tree)
            if not tree.held:
                self._timer = self._transcript.set_timer(tree.stage.shown_s, self._grow)

    def _grow(self) -> None:
        if self._tree is not None and self._tree.advance():
            self._play()

    def hold_tree(self) -> None:
        if self._tree is not None:
            self._tree.held = True

    async def remove_welcome(self) -> None:
        """Remove the welcome page, if it is mounted, and begin the chat at the top."""
        if self.welcome_shown:
            await self._transcript.query(Welcome).remove()
            self._play()
            self._transcript.start_at_top()

    def repaint_welcome(self) -> None:
        for page in self._transcript.query(Welcome):
            page.repaint()

    async def show_first_tour(self) -> bool:
        """Show the tour if it was never shown on this machine; whether it was shown now."""
        seen = self._context.setup.toured
        if seen is None or seen.exists():
            return False
        with suppress(OSError):  # the home cannot be written: the tour is shown at every start
            private_dir(seen.parent)
            seen.touch(mode=0o600)
        await self.show_tour()
        return True

    async def show_tour(self, view: TourView | None = None) -> None:
        """Mount the first page of the tour, or of another one, in place of the welcome page or below the chat."""
        await self._transcript.query("Welcome, TourView").remove()
        view = view or TourView()
        view.set_class(bool(self._transcript.views), "-below")
        await self._transcript.mount(view)
        self._transcript.scroll_end(animate=False)

    async def turn_tour_page(self) -> None:
        if not all(view.next_page() for view in self._transcript.query(TourView)):
            await self.leave_tour()

    async def leave_tour(self) -> bool:
        """Remove the tour, so that an empty chat has its welcome page again; False if it was not shown."""
        if not self._transcript.query(TourView):
            return False
        await self._transcript.query(TourView).remove()
        if not self._transcript.views and not self.welcome_shown:
            await self.show_welcome()
        else:
            self._play()
        self._context.app.redraw()  # progress moves to the welcome page
        return True
