"""The terminal the app draws in: whether there is one, and what happens when it goes away."""

from __future__ import annotations

import os
import signal
import sys

from specchat.errors import UsageError

_HUNG_UP = 128 + 1


def take_terminal() -> None:
    """Make sure that somebody can see the app, and leave when the terminal does.

    A terminal that is gone takes no more output: leaving in good order would wait for it forever. What was said is
    in the store by then, and an engine ends with the pipe that feeds it.

    Raises:
        UsageError: input or output is no terminal (and no browser stands in for one).
    """
    if "TEXTUAL_DRIVER" not in os.environ and not (_is_terminal(sys.__stdin__) and _is_terminal(sys.__stdout__)):
        raise UsageError("the app needs a terminal to draw in; without one there is: specchat run 'your question'")
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, lambda number, frame: os._exit(_HUNG_UP))


def _is_terminal(stream: object) -> bool:
    try:
        return bool(stream.isatty())  # type: ignore[attr-defined]
    except (AttributeError, ValueError):  # none at all, or closed
        return False
