"""Drafters that learn: kept by target and name, shared, bounded, erased on request; they work in short slices."""

from __future__ import annotations

import gc
import time

import pytest
from contracts.kit import scripted_target
from contracts.learning_plugin import Learning, LearningOptions

from specchat.config import drafter_states, state_dir
from specchat.config.drafter_states import DrafterStateFile, erase_state, kept_states
from specchat.drafters.parts import Parts
from specchat.engine.server.kept_drafters import SLICE_S, KeptDrafters
from specchat.errors import StoreError, UsageError

SHA = "ab" * 32


def learning(slices=20):
    return Learning(LearningOptions(slices), Parts(scripted_target()))


def keeper(said=None, sha256=SHA):
    return KeptDrafters(lambda: sha256, (said if said is not None else []).append)


def taught(kept, texts=3, name="learning"):
    drafter = learning()
    kept.keep(name, drafter)
    for _ in range(texts):
        drafter.start([])
    kept.replied()
    return drafter


def state_file():
    (file,) = state_dir().glob("drafters/*/*/state.bin")
    return file


def test_what_was_learnt_is_there_in_the_next_session_and_for_no_other_target():
    taught(keeper())
    again, other = learning(), learning()
    keeper().keep("learning", again)
    keeper(sha256="cd" * 32).keep("learning", other)
    assert (again.texts, other.texts) == (3, 0)
    assert state_file().parent.parent.name == SHA
    assert state_file().stat().st_mode & 0o777 == 0o600


def test_a_drafter_that_learns_nothing_new_writes_nothing():
    kept = keeper()
    drafter = taught(kept)
    before = state_file().stat().st_mtime_ns
    kept.save()
    assert state_file().stat().st_mtime_ns == before
    drafter.start([])
    kept.save()
    assert state_file().stat().st_mtime_ns > before


def test_a_drafter_that_has_learnt_nothing_leaves_no_file():
    kept = keeper()
    drafter = learning()
    kept.keep("learning", drafter)
    kept.replied()
    assert kept_states() == {}


@pytest.mark.parametrize(
    "harm", [lambda data: data[:-1], lambda data: b"", lambda data: data + b"0", lambda data: b"x" * 200]
)
def test_a_damaged_state_starts_with_nothing_and_says_so_once(harm):
    taught(keeper())
    state_file().write_bytes(harm(state_file().read_bytes()))
    said = []
    kept = keeper(said)
    drafters = [learning(), learning()]
    for drafter in drafters:
        kept.keep("learning", drafter)
    assert [drafter.texts for drafter in drafters] == [0, 0]
    assert len(said) == 1
    assert "drafter learning: it starts with nothing learnt" in said[0]
    assert "is damaged" in said[0]
    drafters[0].start([])
    kept.replied()
    assert DrafterStateFile(state_file()).read() == b"1 0"


def test_a_state_that_its_drafter_cannot_use_starts_with_nothing_and_says_so():
    DrafterStateFile.of(SHA, "learning").write(b"no numbers")
    said, drafter = [], learning()
    keeper(said).keep("learning", drafter)
    assert (drafter.texts, len(said)) == (0, 1)


def test_what_is_too_large_is_not_saved_and_said_once(monkeypatch):
    monkeypatch.setattr(drafter_states, "MOST_BYTES", 2)
    said = []
    kept = keeper(said)
    taught(kept)
    kept.replied()
    assert kept_states() == {}
    assert len(said) == 1
    with pytest.raises(StoreError):
        DrafterStateFile.of(SHA, "learning").write(b"abc")


def test_two_of_a_name_share_what_either_learns():
    kept = keeper()
    one = taught(kept, 2)
    other = taught(kept, 3)
    assert one.texts == other.texts == 5
    one.start([])
    kept.replied()
    assert one.texts == other.texts == 6


def test_what_is_erased_is_forgotten_by_a_session_that_goes_on():
    kept = keeper()
    drafter = taught(kept)
    assert erase_state("learning") > 0
    assert kept_states() == {}
    kept.replied()
    assert drafter.texts == 0
    assert kept_states() == {}
    with pytest.raises(UsageError, match="no drafter called 'learnin' has learnt anything"):
        erase_state("learnin")


def test_a_drafter_that_is_gone_is_neither_saved_nor_asked_to_work():
    kept = keeper()
    drafter = learning()
    kept.keep("learning", drafter)
    drafter.start([])
    del drafter
    gc.collect()
    kept.replied()
    assert not kept.due
    assert kept_states() == {}


def test_idle_work_ends_when_it_is_done_and_is_saved():
    kept = keeper()
    drafter = taught(kept, 1)
    assert kept.due
    kept.work(lambda: False)
    assert (drafter.worked, kept.due) == (20, False)
    assert DrafterStateFile(state_file()).read() == b"1 20"


def test_idle_work_stops_at_an_interruption_and_goes_on_later():
    kept = keeper()
    drafter = taught(kept, 1)
    asked = []
    kept.work(lambda: len(asked) == 1 or asked.append(0))
    assert 0 < drafter.worked < 20
    assert kept.due
    kept.work(lambda: False)
    assert drafter.worked == 20


def test_a_slice_is_short_and_what_fails_is_not_asked_again():
    deadlines, said = [], []

    class Failing(Learning):
        def idle(self, deadline):
            deadlines.append(deadline - time.monotonic())
            raise RuntimeError("no")

    kept = keeper(said)
    drafter = Failing(LearningOptions(), Parts(scripted_target()))
    kept.keep("failing", drafter)
    kept.work(lambda: False)
    assert len(deadlines) == len(said) == 1
    assert 0 < deadlines[0] <= SLICE_S
