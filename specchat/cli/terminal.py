"""The terminal the app draws in: whether there is one, and what happens when it goes away."""

from __future__ import annotations

import os
import sys

from specchat.errors import UsageError
from specchat.tui.system.terminal import ExitGuard, bound_environment


def take_terminal() -> ExitGuard:
    """Make sure there is a terminal for the app; what is returned ends the app when the terminal goes away.

    Raises:
        UsageError: input or output is not a terminal (and no browser stands in for one).
    """
    if "TEXTUAL_DRIVER" not in os.environ and not (_is_terminal(sys.__stdin__) and _is_terminal(sys.__stdout__)):
        raise UsageError("the app needs a terminal to draw in; without one there is: specchat run 'your question'")
    bound_environment(os.environ)
    guard = ExitGuard()
    guard.watch()
    return guard


def _is_terminal(stream: object) -> bool:
    try:
        return bool(stream.isatty())  # type: ignore[attr-defined]
    except (AttributeError, ValueError):  # none at all, or closed
        return False
