"""Limits window sizes to what can be drawn, since browsers, terminals and variables can report any."""

from __future__ import annotations

from collections.abc import MutableMapping

from textual.geometry import Size

LARGEST_COLUMNS, LARGEST_LINES = 2000, 1000
"""The largest window; drawing larger ones would take gigabytes."""


def bounded(size: Size) -> Size:
    """The size limited to between one cell and the largest window."""
    return Size(max(1, min(LARGEST_COLUMNS, size.width)), max(1, min(LARGEST_LINES, size.height)))


def bound_environment(environment: MutableMapping[str, str]) -> None:
    """Remove invalid sizes from the variables that Textual and Rich read."""
    for name, most in (("COLUMNS", LARGEST_COLUMNS), ("LINES", LARGEST_LINES), ("ROWS", LARGEST_LINES)):
        said = environment.get(name, "")
        if said and not (said.isascii() and said.isdigit() and len(said) < 10 and 0 < int(said) <= most):
            del environment[name]
