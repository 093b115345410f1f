"""Textual's app with fixes: batches are drawn when they end, it can write to the terminal, and it ends quietly."""

from __future__ import annotations

from textual.app import App
from textual.driver import Driver
from textual.filter import Monochrome, NoColor

from specchat.tui.textual_patches.version import tested


class FixedApp(App[None]):
    """The base of the app; uses private attributes of Textual."""

    @property
    def can_suspend(self) -> bool:
        """Whether the app can go to the background here."""
        driver = self._used_driver
        return driver is not None and driver.can_suspend

    @property
    def crash(self) -> Exception | None:
        """The first error that nothing handled, which ended the app; None where this version of Textual hides it."""
        error = self._exception if tested() else getattr(self, "_exception", None)
        return error if isinstance(error, Exception) else None

    def write_to_terminal(self, sequence: str) -> None:
        """Send a sequence that draws nothing."""
        driver = self._used_driver
        if driver is not None and not self.is_headless:
            driver.write(sequence)
            driver.flush()

    @property
    def _used_driver(self) -> Driver | None:
        """The terminal's driver; None where this version of Textual does not have it in the known place."""
        return self._driver if tested() else getattr(self, "_driver", None)

    def filter_all_colours(self) -> None:
        """Draw without colours, where Textual would draw shades of grey."""
        if not tested():
            return
        self._filters = [NoColor() if isinstance(one, Monochrome) else one for one in self._filters]

    def _fatal_error(self) -> None:
        """End the app; whoever started it reports the `crash`. Untested versions print it too, with all variables."""
        if tested():
            self._close_messages_no_wait()
        else:
            super()._fatal_error()

    def _end_batch(self) -> None:
        """Draw what changed within a batch when it ends: Textual 8.2.8 leaves it until something else happens."""
        super()._end_batch()
        if tested() and not self._batch_count:
            for screen in self.screen_stack:
                screen.check_idle()
