"""What tests of the app share: an app that draws at once, without the rests it takes for others; a store's place."""

import gc
from pathlib import Path

import pytest
import textual._wait
from parsed_styles import parse_once
from textual.css.stylesheet import Stylesheet

from specchat.tui.control import event_pump, screen_update

IDLE_S = textual._wait.SLEEP_GRANULARITY / 2
"""An app that computes for less of each 20 ms is idle. (Textual's own bound, 1 ms, is passed by a spinner, and each
key that a test presses then takes a second; 10 ms stood in its earlier versions.)"""

WAITS = {
    event_pump: ("FRAME_S", "SHARED_FRAME_S", "REST_FACTOR", "SHARED_REST_FACTOR"),
    screen_update: ("TREE_S", "FIGURES_S"),
}


@pytest.fixture(autouse=True)
def without_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, names in WAITS.items():
        for name in names:
            monkeypatch.setattr(module, name, getattr(module, name) / 20)
    monkeypatch.setattr(textual._wait, "SLEEP_IDLE", IDLE_S)
    monkeypatch.setattr(Stylesheet, "_parse_rules", parse_once)
    for name in ("freeze", "set_threshold"):  # what one test leaves must not stay for the next
        monkeypatch.setattr(gc, name, lambda *_: None)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "chats.db"
