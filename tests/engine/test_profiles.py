"""What passes cost is kept with processor, version and date, and not believed where one of them is another."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from specchat.core.costs import Costs
from specchat.engine.protocol.commands import Load
from specchat.engine.server import idle_time, worker
from specchat.engine.server import measured_passes as profiles
from specchat.engine.server.command_queue import CommandQueue
from specchat.engine.server.measured_passes import ProfileStore
from specchat.engine.server.worker import Worker

COSTS = Costs(((1, 0.004), (2, 0.005), (4, 0.008)), ((1, 0.001), (4, 0.002)))
DISTURBED = Costs(((1, 0.009), (2, 0.005), (4, 0.008)))


@pytest.fixture
def store(tmp_path: Path) -> ProfileStore:
    return ProfileStore(tmp_path / "profiles.json")


def edit(store: ProfileStore, **changes: Any) -> None:
    data = json.loads(store.file.read_text())
    data["pair"] |= changes
    store.file.write_text(json.dumps(data))


def test_what_was_measured_is_found_again(store):
    entry = store.put("pair", "a processor", COSTS)
    assert store.get("pair", "a processor") == entry
    assert (entry.costs, entry.old) == (COSTS, False)
    assert store.get("other", "a processor") is None


def test_plain_passes_are_those_of_models_that_are_in_memory_as_a_whole(store):
    quick = Costs(((1, 0.003), (2, 0.005)))
    for key, costs in (
        ("a+b|cpu|int4|native|2", COSTS),
        ("a|cpu|int4|native|2", quick),
        ("c|cuda:0|int4|own|2", COSTS),
    ):
        store.put(key, "p", costs)
    store.put("a|cpu|int4|native|2|1 of 2 layers stay in memory", "p", COSTS)
    assert store.plain_passes_s("cpu", "p") == {"a": 0.003}
    assert store.plain_passes_s("cpu", "another") == {}


def test_another_processor_or_version_makes_it_unknown(store):
    store.put("pair", "a processor", COSTS)
    assert store.get("pair", "another") is None
    edit(store, version="0.0.1")
    assert store.get("pair", "a processor") is None


def test_a_kept_profile_that_cannot_be_true_is_refused(store):
    store.put("pair", "a processor", COSTS)
    edit(store, verify=DISTURBED.verify)
    assert store.get("pair", "a processor") is None
    edit(store, verify=COSTS.verify, measured="2026-01-01T00:00:00")
    assert store.get("pair", "a processor") is None, "a time without a zone is none that was written here"


def test_only_the_newest_profiles_are_kept(store):
    for number in range(202):
        store.put(f"pair {number}", "p", COSTS)
    store.put("pair 2", "p", COSTS)
    assert [store.get(f"pair {number}", "p") is None for number in (1, 2, 3)] == [True, False, False]


@pytest.mark.parametrize(
    ("age", "old"), [(timedelta(days=29), False), (timedelta(days=31), True), (-timedelta(1), True)]
)
def test_a_profile_grows_old(store, age, old):
    entry = msgspec.structs.replace(store.put("pair", "p", COSTS), measured=datetime.now(UTC) - age)
    assert entry.old is old


def test_a_file_of_an_earlier_version_counts_as_not_measured(store):
    store.file.write_text(
        '{"pair": {"points": [[64, 0.004]], "verify": [[1, 0.004]], "draft": [], "measured": "2026"}}'
    )
    assert store.get("pair", "p") is None
    store.put("pair", "p", COSTS)
    assert store.get("pair", "p") is not None


@pytest.fixture
def loaded(away_from_home: None, monkeypatch: pytest.MonkeyPatch) -> Worker:
    """A worker with a pair, and no waiting for commands that do not come."""
    monkeypatch.setattr(worker, "_IDLE_S", 0.0)
    one = Worker(CommandQueue(), lambda event: None)
    one.answer(Load({"pair": "scripted"}))
    return one


def measuring(monkeypatch: pytest.MonkeyPatch, *found: Costs) -> list[Costs]:
    """What each measurement finds; the list shrinks as they are made."""
    left = list(found)
    monkeypatch.setattr(idle_time, "measure_costs", lambda *given, **more: left.pop(0))
    return left


def idle(one: Worker, times: int) -> None:
    """So often nothing happens; where everything is known the worker would wait for ever, so a command comes."""
    for _ in range(times):
        if not one._pair.open.idle.measuring.due:
            return
        one._wait()


def test_a_disturbed_measurement_is_made_again(loaded, monkeypatch):
    left = measuring(monkeypatch, DISTURBED, COSTS, COSTS)
    idle(loaded, 9)
    assert len(left) == 1
    assert loaded._pair.open.idle.measuring.profile.costs == COSTS


def test_a_machine_that_is_never_quiet_is_not_measured_for_ever(loaded, monkeypatch):
    left = measuring(monkeypatch, *[DISTURBED] * 9)
    idle(loaded, 9)
    assert len(left) == 6
    assert loaded._pair.open.idle.measuring.profile is None


def test_an_old_profile_is_planned_with_until_a_new_one_is_there(loaded, monkeypatch):
    pair = loaded._pair.open.loaded
    entry = loaded._pair._store.put(pair.key, idle_time.processor_name(pair.device), DISTURBED)
    costs = Costs(((1, 0.004), (2, 0.006)))
    data = json.loads(loaded._pair._store.file.read_text())
    data[pair.key] |= {
        "verify": costs.verify,
        "measured": (entry.measured - profiles.OLD * 2).isoformat(),
    }
    loaded._pair._store.file.write_text(json.dumps(data))
    loaded.answer(Load({"pair": "scripted"}))
    assert loaded._pair.open.idle.measuring.profile.costs.verify == costs.verify
    measuring(monkeypatch, COSTS)
    idle(loaded, 1)
    assert loaded._pair.open.idle.measuring.profile.costs == COSTS
