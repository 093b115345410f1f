"""Shows the tour: once at the first start, and on request."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from specchat.config import private_dir
from specchat.tui.control.key_bindings import every_key
from specchat.tui.ports import KeyNames
from specchat.tui.state.session import Chat
from specchat.tui.widgets.prompt import Prompt
from specchat.tui.widgets.tour import TourView
from specchat.tui.widgets.transcript import Transcript
from specchat.tui.widgets.welcome import Welcome


class Tour:
    """Shows the pages of the tour in the transcript.

    Args:
        seen: a file that exists once the tour was shown; without one it is shown on request only.
    """

    def __init__(self, chat: Chat, transcript: Transcript, prompt: Prompt, key_of: KeyNames, seen: Path | None) -> None:
        self._chat, self._transcript, self._prompt, self._key_of = chat, transcript, prompt, key_of
        self._seen = seen

    @property
    def is_shown(self) -> bool:
        """Whether the tour is visible."""
        return bool(self._transcript.query(TourView))

    async def first_start(self) -> None:
        """Show the tour if it was never shown on this machine."""
        if self._seen is None or self._seen.exists():
            return
        with suppress(OSError):  # the home cannot be written: the tour is shown at every start
            private_dir(self._seen.parent)
            self._seen.touch(mode=0o600)
        await self.start()

    async def start(self) -> None:
        """The first page, in place of the empty chat or below the chat."""
        page = self._transcript
        await page.query("Welcome, TourView").remove()
        view = TourView(self._key_of, lambda id: every_key()[id].help if id in every_key() else "")
        view.set_class(bool(page.views), "-below")
        await page.mount(view)
        page.scroll_end(animate=False)
        self._prompt.focus()

    async def next(self) -> None:
        """The next page, or the end."""
        for view in self._transcript.query(TourView):
            if not view.next_page():
                await self.leave()

    async def leave(self) -> bool:
        """Remove the tour; False if it was not shown."""
        page = self._transcript
        if not self.is_shown:
            return False
        await page.query(TourView).remove()
        if not page.views and not page.query(Welcome):
            await page.mount(Welcome(self._chat))
        return True
