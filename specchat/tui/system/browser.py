"""The driver of the app in a browser: ends the app when the page is closed or the server has gone."""

from __future__ import annotations

import os
from typing import Any, Protocol, cast

from textual.app import App
from textual.drivers.web_driver import WebDriver

from specchat.tui.system.terminal import ExitGuard


class ExitableApp(Protocol):
    guard: ExitGuard

    def listen_for_end(self) -> None:
        """From now on the guard can end the app."""


class BrowserDriver(WebDriver):
    """Textual's driver for browsers; without this, app and engine would run on after the page was closed."""

    def __init__(self, app: App[Any], **options: Any) -> None:
        super().__init__(app, **options)
        self._exitable_app = cast(ExitableApp, app)

    def write(self, data: str) -> None:
        """Write a whole packet: Textual 8.2.8 drops the rest where a signal interrupts a write."""
        text = data.encode()
        rest = memoryview(b"D%s%s" % (len(text).to_bytes(4, "big"), text))
        while rest:
            rest = rest[os.write(self.fileno, rest) :]

    def start_application_mode(self) -> None:
        super().start_application_mode()
        self._exitable_app.listen_for_end()

    def run_input_thread(self) -> None:
        super().run_input_thread()
        self._exitable_app.guard.hang_up()

    def on_meta(self, packet_type: str, payload: dict[str, object]) -> None:
        """End the app when the page is closed; ignore invalid window sizes."""
        if packet_type == "quit":
            self._exitable_app.guard.hang_up()
        elif packet_type != "resize" or all(isinstance(payload.get(side), int) for side in ("width", "height")):
            super().on_meta(packet_type, payload)
