"""Places with like states: those that brute force finds, with weights that fall with the distance."""

from __future__ import annotations

import numpy as np
import pytest

from specchat.indexes.datastore import PASSAGE_TOKENS, StateNeighbours

D, N = 24, 700


def states(seed=0):
    found = np.random.default_rng(seed).normal(size=(N, D)).astype(np.float16)
    found[::50] = 0  # end marks
    return found


def brute_force(stored, query):
    """(place, distance) of all known places, the nearest first."""
    known = [place for place in range(N) if stored[place].any()]
    centre = stored[known].astype(np.float64).mean(axis=0)
    of = {}
    for place in known:
        one, other = stored[place].astype(np.float64) - centre, query - centre
        of[place] = 1 - float(one @ other) / float(np.linalg.norm(one) * np.linalg.norm(other))
    return sorted(of.items(), key=lambda entry: entry[1])


def test_where_all_passages_are_looked_into_the_nearest_places_are_those_of_brute_force():
    stored, query = states(), np.random.default_rng(5).normal(size=D).astype(np.float32)
    found = StateNeighbours(stored).nearest(query, passages=N)
    expected = brute_force(stored, query)[: len(found)]
    assert len(found) == 32
    assert [one.place for one in found] == [place for place, _ in expected]
    assert [one.distance for one in found] == pytest.approx([distance for _, distance in expected], abs=1e-4)
    assert sum(one.weight for one in found) == pytest.approx(1)
    logs = [np.log(one.weight) + one.distance / 0.1 for one in found]
    assert logs == pytest.approx([logs[0]] * 32, abs=1e-3), "weights fall exponentially"


def test_a_state_that_is_stored_is_found_first_in_the_passage_that_is_like_it():
    stored = states(1)
    theme = np.random.default_rng(9).normal(size=D)
    stored[4 * PASSAGE_TOKENS : 5 * PASSAGE_TOKENS] += theme.astype(np.float16)
    place = 4 * PASSAGE_TOKENS + 7
    found = StateNeighbours(stored).nearest(stored[place].astype(np.float32), passages=1)
    assert found[0].place == place
    assert found[0].distance == pytest.approx(0, abs=1e-3)
    assert {one.place // PASSAGE_TOKENS for one in found} == {4}


def test_states_that_are_no_numbers_are_found_nowhere():
    stored = states(2)
    stored[10], stored[11] = np.nan, np.inf
    found = StateNeighbours(stored).nearest(stored[12].astype(np.float32), passages=N)
    assert found[0].place == 12
    assert not {10, 11} & {one.place for one in found}
    assert StateNeighbours(np.zeros((3, D), np.float16)).nearest(np.ones(D, np.float32)) == []
