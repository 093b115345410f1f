"""Shows the tour: once at the first start, and on request."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from specchat.config import private_dir
from specchat.tui.control.key_bindings import every_key
from specchat.tui.ports import KeyNames, Redraw
from specchat.tui.view_ports import PromptPort, StartPagesPort


class Tour:
    """Shows the pages of the tour in the transcript.

    Args:
        seen: a file that exists once the tour was shown; without one it is shown on request only.
    """

    def __init__(
        self, pages: StartPagesPort, prompt: PromptPort, key_of: KeyNames, redraw: Redraw, seen: Path | None
    ) -> None:
        self._pages, self._prompt, self._key_of, self._redraw = pages, prompt, key_of, redraw
        self._seen = seen

    async def first_start(self) -> bool:
        """Show the tour if it was never shown on this machine; whether it was."""
        if self._seen is None or self._seen.exists():
            return False
        with suppress(OSError):  # the home cannot be written: the tour is shown at every start
            private_dir(self._seen.parent)
            self._seen.touch(mode=0o600)
        await self.start()
        return True

    async def start(self) -> None:
        """Show the first page, in place of the welcome page or below the chat."""
        await self._pages.show_tour(self._key_of, lambda id: every_key()[id].help if id in every_key() else "")
        self._prompt.focus()

    async def next(self) -> None:
        """The next page, or the end."""
        if not self._pages.next_tour_page():
            await self.leave()

    async def leave(self) -> bool:
        """Remove the tour; False if it was not shown."""
        if not self._pages.tour_shown:
            return False
        await self._pages.remove_tour()
        self._redraw()  # progress moves to the welcome page
        return True
