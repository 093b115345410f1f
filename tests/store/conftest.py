"""A store of the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from specchat.store.chats import Chats
from specchat.store.database import open_to_write


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "chats.db"


@pytest.fixture
def chats(path: Path) -> Iterator[Chats]:
    connection = open_to_write(path)[0]
    yield Chats(connection)
    connection.close()
