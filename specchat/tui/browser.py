"""The app behind a browser: it leaves with its page, and with whoever serves it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from textual.drivers.web_driver import WebDriver

if TYPE_CHECKING:
    from specchat.tui.app import SpecchatApp


class BrowserDriver(WebDriver):
    """Textual's driver for browsers, which would run on without a page or a server: for ever, and with its engine."""

    def start_application_mode(self) -> None:
        """Begin; from now on the app can be asked to leave, also before it is mounted."""
        super().start_application_mode()
        self._specchat.listen_for_end()

    def run_input_thread(self) -> None:
        """Read what the server sends; when it sends no more, leave."""
        super().run_input_thread()
        self._specchat.guard.hang_up()

    def on_meta(self, packet_type: str, payload: dict[str, object]) -> None:
        """Leave when the page is closed, and take no window size that is none."""
        if packet_type == "quit":
            self._specchat.guard.hang_up()
        elif packet_type != "resize" or all(isinstance(payload.get(side), int) for side in ("width", "height")):
            super().on_meta(packet_type, payload)

    @property
    def _specchat(self) -> SpecchatApp:
        return cast("SpecchatApp", self._app)
