"""The app behind a browser: it leaves with whoever serves it."""

from __future__ import annotations

from textual import messages
from textual.drivers.web_driver import WebDriver


class BrowserDriver(WebDriver):
    """Textual's driver for browsers, which would run on without a server: for ever, and with its engine."""

    def run_input_thread(self) -> None:
        """Read what the server sends; when it sends no more, leave."""
        super().run_input_thread()
        self._app.post_message(messages.ExitApp())
