"""The app ends when it is told to, or when nobody can see it any more: in good order if it can, in any case soon.

A signal, or the end of the terminal or page, asks the app to leave. Leaving in order takes a moment and may not be
possible: an app that is only starting does not listen yet, one that is busy does not listen now, and a terminal that is
gone takes no output. So a clock runs beside it, in a thread that needs nobody's help.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

PATIENCE_S = 1.5
"""How long leaving in order may take."""

RESTORE = "\x1b[?2004l\x1b[?7h\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[<u\x1b[?1049l\x1b[?25h\x1b[?1004l"
"""What Textual sends on leaving: no pasting mode, no mouse, the normal screen, a cursor."""

_HUNG_UP = getattr(signal, "SIGHUP", signal.SIGTERM)
_SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGQUIT") if hasattr(signal, name)]


class ExitGuard:
    """Watches over the end of one app.

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
        """Begin: from now on signals and the end of standard input end the process, in the main thread's own time."""
        self._watching = True
        self._take_signals()
        if hasattr(select, "poll") and sys.__stdin__ is not None:
            threading.Thread(target=self._wait_for_hang_up, name="hang-up", daemon=True).start()

    def listen(self, leave: Callable[[int], object]) -> None:
        """The app runs: it is asked to leave, with an exit code; `leave` may be called from any thread."""
        self._leave = leave
        if self._watching:
            self._take_signals()  # Textual's drivers took some of them

    def hang_up(self) -> None:
        """Nobody can see the app any more."""
        self._leave_by(128 + _HUNG_UP, restore=False)

    def _take_signals(self) -> None:
        for number in _SIGNALS:
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._leave_by(128 + number, restore=number != _HUNG_UP)

    def _leave_by(self, code: int, *, restore: bool) -> None:
        if self._leaving.is_set():
            return
        self._leaving.set()
        if self._leave is None:
            self._end(code)
            return
        threading.Thread(target=self._end_later, args=(code, restore), name="leaving", daemon=True).start()
        self._leave(code)

    def _end_later(self, code: int, restore: bool) -> None:
        time.sleep(PATIENCE_S)
        if restore:
            self._restore_terminal()
        self._end(code)

    def _restore_terminal(self) -> None:
        """What the app would have done had it left in order."""
        if self._attributes is None or sys.__stdin__ is None or sys.__stderr__ is None:
            return
        import termios

        try:
            termios.tcsetattr(sys.__stdin__.fileno(), termios.TCSANOW, self._attributes)
            os.write(sys.__stderr__.fileno(), RESTORE.encode())
        except (OSError, ValueError, termios.error):  # the terminal is gone as well
            return

    def _wait_for_hang_up(self) -> None:
        """Sleep until the other end of standard input is closed; what arrives there wakes nobody."""
        poll = select.poll()
        try:
            assert sys.__stdin__ is not None, "there is a standard input to watch"
            poll.register(sys.__stdin__.fileno(), 0)
            told = poll.poll()
        except (OSError, ValueError):
            return
        if told and told[0][1] & (select.POLLHUP | select.POLLERR):  # anything else: this system cannot watch it
            self.hang_up()


def _terminal_attributes() -> list[Any] | None:
    """How the terminal is set up before the app takes it; None where there is none."""
    try:
        import termios

        return termios.tcgetattr(sys.__stdin__.fileno()) if sys.__stdin__ is not None else None
    except (ImportError, OSError, ValueError, termios.error):
        return None
