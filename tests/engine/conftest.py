"""Engine processes: one for each file of tests, or one for a test that may break it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_driver import Driver

from specchat.engine.protocol import events as ev


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engine")


@pytest.fixture(scope="module")
def shared(home: Path, preloaded_module: None) -> Iterator[Driver]:
    """One engine for all tests that leave it as they found it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECCHAT_HOME", str(home / "home"))
        driver = Driver(home / "shared.log")
        driver.hello = driver.until(ev.Hello)
        driver.load()
        yield driver
        driver.engine.close()
        assert not driver.engine.alive


@pytest.fixture
def driver(shared: Driver) -> Driver:
    assert shared.engine.alive
    shared.load()
    return shared


@pytest.fixture
def own(away_from_home: None, preloaded: None, tmp_path: Path) -> Iterator[Driver]:
    """An engine that a test may break."""
    driver = Driver(tmp_path / "own.log")
    yield driver
    driver.engine.close(0.5)
