"""What tests of the app share: an app that draws at once, without the rests it takes for others; a store's place."""

import gc
from pathlib import Path

import pytest

from specchat.tui.control import event_pump, screen_update

WAITS = {
    event_pump: ("FRAME_S", "SHARED_FRAME_S", "REST_FACTOR", "SHARED_REST_FACTOR"),
    screen_update: ("TREE_S", "FIGURES_S"),
}


@pytest.fixture(autouse=True)
def without_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, names in WAITS.items():
        for name in names:
            monkeypatch.setattr(module, name, getattr(module, name) / 20)
    for name in ("freeze", "set_threshold"):  # what one test leaves must not stay for the next
        monkeypatch.setattr(gc, name, lambda *_: None)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "chats.db"
