"""The engine as a process with drafters that learn or were trained: over restarts, between commands, after damage."""

from __future__ import annotations

import hashlib
import sys
import time
from pathlib import Path

import pytest
import torch
from contracts.trained_folders import trained_folder
from engine_driver import Driver

from specchat.config import own_drafters_dir, state_dir
from specchat.config.drafter_states import DrafterStateFile, erase_state
from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Change, Count, Message, Statistics

pytestmark = pytest.mark.usefixtures("preloaded")

TESTS = Path(__file__).parents[1]
SERVE = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
from contracts.table_plugins import listed
from specchat.engine.server import idle_time
from specchat.engine.server.host import serve
idle_time._ATTEMPTS = 0  # timing passes comes first and takes seconds
with listed():
    serve()
"""
LEARNING = {"drafter": "learning", "max_tokens": 6}


@pytest.fixture
def engine(tmp_path):
    """Starts engines, one after another, whose tables hold the tests' methods."""

    def start() -> Driver:
        leave(start.drivers)
        start.drivers.append(Driver(tmp_path / "log", [sys.executable, "-c", SERVE]))
        return start.drivers[-1]

    start.drivers = []
    yield start
    leave(start.drivers)


def leave(drivers):
    for driver in drivers:
        driver.engine.close()
    drivers.clear()


def write(driver, id):
    """A reply, and an answer that the engine gives once it has saved what was learnt from it."""
    driver.reply(id)
    driver.send(Statistics()).until(ev.Totals)


def kept():
    (file,) = state_dir().glob("drafters/*/learning/state.bin")
    return [int(word) for word in DrafterStateFile(file).read().split()]


def test_learning_survives_restarts_and_damage_is_erased_on_request_and_never_keeps_a_command_waiting(engine):
    driver = engine()
    driver.load(**LEARNING)
    write(driver, 1)
    assert kept()[0] == 1

    driver = engine()
    driver.load(**LEARNING)
    write(driver, 1)
    assert kept()[0] == 2
    deadline = time.monotonic() + 30
    while kept()[1] < 20 and time.monotonic() < deadline:  # idle work, saved when it is done
        time.sleep(0.05)
    assert kept()[1] >= 20
    driver.send(Change({"method_options": {"learning.slices": 100_000}})).until(ev.Changed)
    write(driver, 2)
    time.sleep(0.8)  # idle work for minutes has begun
    driver.send(Count(7, [Message("user", "hi")])).until(ev.Counted)

    (file,) = state_dir().glob("drafters/*/learning/state.bin")
    leave(engine.drivers)
    file.write_bytes(b"damaged")
    driver = engine()
    driver.load(**LEARNING)
    notices = [event.text for event in driver.passed if isinstance(event, ev.Notice)]
    assert len(notices) == 1
    assert "it starts with nothing learnt" in notices[0]
    write(driver, 1)
    assert kept()[0] == 1

    erase_state("learning")
    write(driver, 2)
    assert not file.exists()


def refused(driver, **changes):
    """What the engine says to a change that it refuses."""
    driver.engine.send(Change(changes))
    while not isinstance(event := driver._next(), ev.Failed):
        assert not isinstance(event, ev.Changed)
    assert event.exit_code == 2
    return event.message


def test_a_trained_drafter_is_used_once_it_is_here_and_a_wrong_one_stops_nothing_else(engine):
    driver = engine()
    driver.load(drafter="none", max_tokens=6)
    assert "drafter 'constant' needs weights trained for scripted" in refused(driver, drafter="constant")
    sha256 = hashlib.sha256(b"scripted").hexdigest()
    token = {"token": torch.tensor(3)}
    trained_folder(own_drafters_dir() / "three", token, "constant", sha256)
    trained_folder(own_drafters_dir() / "stranger", token, "constant", "ab" * 32)
    trained_folder(own_drafters_dir() / "torn", token, "constant", sha256).weights.write_bytes(b"x")
    driver.send(Change({"drafter": "constant"})).until(ev.Changed)
    driver.reply(1)
    guessed = {
        (node, draw.proposer) for done in driver.rounds() for draw in done.tree.draws for node in done.tree.tokens[1:]
    }
    assert guessed == {(3, "constant")}
    for name, why in (("stranger", "trained for tiny, not for scripted"), ("torn", "has 1 bytes"), ("thre", "'three'")):
        assert why in refused(driver, method_options={"constant.weights": name})
    driver.reply(2)
