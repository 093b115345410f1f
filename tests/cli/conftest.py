"""What tests of the command line share."""

from __future__ import annotations

import pytest

from tests.built_commands import PLACES, command_of


@pytest.fixture(autouse=True)
def built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in PLACES:
        monkeypatch.setattr(module, name, command_of)
