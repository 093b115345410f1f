"""When the tour is shown: once, at the first start, and whenever it is asked for."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from specchat.config import private_dir
from specchat.tui.control.key_bindings import every_key
from specchat.tui.widgets.tour import TourView
from specchat.tui.widgets.welcome import Welcome

if TYPE_CHECKING:
    from specchat.tui.app import SpecchatApp


class Tour:
    """`seen` is a file that stands where the tour was shown before; without one it is shown on request only."""

    def __init__(self, app: SpecchatApp, seen: Path | None) -> None:
        self._app = app
        self._seen = seen

    @property
    def on(self) -> bool:
        """The tour is on the page."""
        return bool(self._app.transcript.query(TourView))

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
        page = self._app.transcript
        await page.query("Welcome, TourView").remove()
        view = TourView(self._app.key_of, lambda id: every_key()[id].help if id in every_key() else "")
        view.set_class(bool(page.views), "-below")
        await page.mount(view)
        page.scroll_end(animate=False)
        self._app.prompt.focus()

    async def next(self) -> None:
        """The next page, or the end."""
        for view in self._app.transcript.query(TourView):
            if not view.turn():
                await self.leave()

    async def leave(self) -> bool:
        """Back to the chat; False if there was no tour."""
        page = self._app.transcript
        if not self.on:
            return False
        await page.query(TourView).remove()
        if not page.views and not page.query(Welcome):
            await page.mount(Welcome(self._app.chat))
        return True
