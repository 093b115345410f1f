"""The app under test draws as soon as there is something to draw: what it rests for others would only be waited for."""

import gc

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
