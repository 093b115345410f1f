"""The app behind a browser: it leaves with its page, and with whoever serves it."""

from __future__ import annotations

from typing import Protocol, cast

from textual.drivers.web_driver import WebDriver

from specchat.tui.system.exit_guard import ExitGuard


class Leaving(Protocol):
    """What the driver asks of the app."""

    guard: ExitGuard

    def listen_for_end(self) -> None:
        """From now on it can be asked to leave."""


class BrowserDriver(WebDriver):
    """Textual's driver for browsers, which would run on without a page or a server: for ever, and with its engine."""

    def start_application_mode(self) -> None:
        """Begin; from now on the app can be asked to leave, also before it is mounted."""
        super().start_application_mode()
        self._leaving.listen_for_end()

    def run_input_thread(self) -> None:
        """Read what the server sends; when it sends no more, leave."""
        super().run_input_thread()
        self._leaving.guard.hang_up()

    def on_meta(self, packet_type: str, payload: dict[str, object]) -> None:
        """Leave when the page is closed, and take no window size that is none."""
        if packet_type == "quit":
            self._leaving.guard.hang_up()
        elif packet_type != "resize" or all(isinstance(payload.get(side), int) for side in ("width", "height")):
            super().on_meta(packet_type, payload)

    @property
    def _leaving(self) -> Leaving:
        return cast(Leaving, self._app)
