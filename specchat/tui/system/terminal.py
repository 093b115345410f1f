"""The end of the app on a signal or when its terminal or page has gone, and the limits of its window's size.

An orderly exit takes a moment and is not always possible: the app may still be starting, may be busy, or cannot write
to its terminal any more. So a thread ends the process after a time limit.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, MutableMapping
from typing import Any

from textual.geometry import Size

PATIENCE_S = 1.5
"""The time limit of an orderly exit."""

RESTORE = "\x1b[?2004l\x1b[?7h\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[<u\x1b[?1049l\x1b[?25h\x1b[?1004l"
"""What Textual sends at the end: bracketed paste and mouse off, normal screen, cursor on."""

_HUNG_UP = getattr(signal, "SIGHUP", signal.SIGTERM)
_SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGQUIT") if hasattr(signal, name)]


class ExitGuard:
    """Ends one app on signals and hang-ups.

    Args:
        end: ends the process at once; it may be called from any thread.
    """

    def __init__(self, end: Callable[[int], Any] = os._exit) -> None:
        self._end = end
        self._leave: Callable[[int], object] | None = None
        self._attributes = _terminal_attributes()
        self._leaving = threading.Event()
        self._watching = False

    def watch(self) -> None:
        """From now on signals and the end of standard input end the process."""
        self._watching = True
        self._take_signals()
        if hasattr(select, "poll") and sys.__stdin__ is not None:
            threading.Thread(target=self._wait_for_hang_up, name="hang-up", daemon=True).start()

    def listen(self, leave: Callable[[int], object]) -> None:
        """The app is running; `leave` asks it to exit with a code and may be called from any thread."""
        self._leave = leave
        if self._watching:
            self._take_signals()  # Textual's drivers replaced some handlers

    def hang_up(self) -> None:
        """The terminal or page of the app has gone."""
        self._leave_with(128 + _HUNG_UP, restore=False)

    def _take_signals(self) -> None:
        for number in _SIGNALS:
            signal.signal(number, lambda number, _: self._leave_with(128 + number, restore=number != _HUNG_UP))

    def _leave_with(self, code: int, *, restore: bool) -> None:
        if self._leaving.is_set():
            return
        self._leaving.set()
        if self._leave is None:
            self._end(code)
            return

        def end_later() -> None:
            time.sleep(PATIENCE_S)
            if restore:
                self._restore_terminal()
            self._end(code)

        threading.Thread(target=end_later, name="leaving", daemon=True).start()
        self._leave(code)

    def _restore_terminal(self) -> None:
        if self._attributes is None or sys.__stdin__ is None or sys.__stderr__ is None:
            return
        import termios

        try:
            termios.tcsetattr(sys.__stdin__.fileno(), termios.TCSANOW, self._attributes)
            os.write(sys.__stderr__.fileno(), RESTORE.encode())
        except (OSError, ValueError, termios.error):  # the terminal has gone
            return

    def _wait_for_hang_up(self) -> None:
        """Wait until the other end of standard input is closed; input does not end the wait."""
        poll = select.poll()
        try:
            assert sys.__stdin__ is not None, "there is a standard input to watch"
            poll.register(sys.__stdin__.fileno(), 0)
            events = poll.poll()
        except (OSError, ValueError):
            return
        if events and events[0][1] & (select.POLLHUP | select.POLLERR):  # else: this system cannot report hang-ups
            self.hang_up()


def _terminal_attributes() -> list[Any] | None:
    """The attributes of the terminal before the app changes them; None without a terminal."""
    try:
        import termios

        return termios.tcgetattr(sys.__stdin__.fileno()) if sys.__stdin__ is not None else None
    except (ImportError, OSError, ValueError, termios.error):
        return None


LARGEST_COLUMNS, LARGEST_LINES = 2000, 1000
"""The largest window; drawing larger ones would take gigabytes."""


def bounded(size: Size) -> Size:
    return Size(max(1, min(LARGEST_COLUMNS, size.width)), max(1, min(LARGEST_LINES, size.height)))


def bound_environment(environment: MutableMapping[str, str]) -> None:
    """Remove invalid sizes from the variables that Textual and Rich read."""
    for name, most in (("COLUMNS", LARGEST_COLUMNS), ("LINES", LARGEST_LINES), ("ROWS", LARGEST_LINES)):
        said = environment.get(name, "")
        if said and not (said.isascii() and said.isdigit() and len(said) < 10 and 0 < int(said) <= most):
            del environment[name]
