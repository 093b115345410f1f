"""When the tour is shown: once, at the first start, and whenever it is asked for."""

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
    """The tour's pages, on the page of the chat.

    Args:
        seen: a file that exists once the tour was shown; without one it is shown on request only.
    """

    def __init__(self, chat: Chat, transcript: Transcript, prompt: Prompt, key_of: KeyNames, seen: Path | None) -> None:
        self._chat, self._transcript, self._prompt, self._key_of = chat, transcript, prompt, key_of
        self._seen = seen

    @property
    def on(self) -> bool:
        """The tour is on the page."""
        return bool(self._transcript.query(TourView))

    async def first_start(self) -> None:
        """Show it, if nobody has seen it here."""
        if self._seen is None or self._seen.exists():
            return
        with suppress(OSError):  # a home that cannot be written: the tour comes again, and Esc skips it again
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
            if not view.turn():
                await self.leave()

    async def leave(self) -> bool:
        """Back to the chat; False if there was no tour."""
        page = self._transcript
        if not self.on:
            return False
        await page.query(TourView).remove()
        if not page.views and not page.query(Welcome):
            await page.mount(Welcome(self._chat))
        return True
