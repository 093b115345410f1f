"""What tests of real terminals share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.terminal import Terminal


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    """Terminals that a test opens one after another; all are closed with it."""
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()
