"""Sizes of windows that can be drawn: a browser, a terminal or a variable can name any."""

from __future__ import annotations

from collections.abc import MutableMapping

from textual.geometry import Size

LARGEST_COLUMNS, LARGEST_ROWS = 2000, 1000
"""Beyond this no window is real, and drawing it would take gigabytes."""


def bounded(size: Size) -> Size:
    """The size of a window that can be drawn: at least a cell, at most what a wall of screens has."""
    return Size(max(1, min(LARGEST_COLUMNS, size.width)), max(1, min(LARGEST_ROWS, size.height)))


def bound_environment(environment: MutableMapping[str, str]) -> None:
    """The same for the variables that Textual and Rich read sizes from; what is no size is taken out."""
    for name, most in (("COLUMNS", LARGEST_COLUMNS), ("LINES", LARGEST_ROWS), ("ROWS", LARGEST_ROWS)):
        said = environment.get(name, "")
        if said and not (said.isascii() and said.isdigit() and len(said) < 10 and 0 < int(said) <= most):
            del environment[name]
