"""Places in stored texts whose hidden states are nearest to a given one."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

PASSAGE_TOKENS = 64
"""Places of so many tokens are looked into together, or not at all."""

_PASSAGES = 16
"""How many passages are looked into: those whose mean state is nearest."""

_NEIGHBOURS = 32
"""How many places are found."""

_SOFTNESS = 0.1
"""The larger, the less nearer places weigh more than others."""


class Neighbour(NamedTuple):
    """A place, its distance (1 − cosine, 0 to 2), and its share among those found with it."""

    place: int
    distance: float
    weight: float


class StateNeighbours:
    """The nearest places, found in two stages: the passages that are nearest as a whole, then their tokens.

    States are compared by the cosine after the mean of all is taken away. A state of zeros is that of no place.

    Reference: Li et al., Nearest Neighbor Speculative Decoding, arXiv:2405.19325, for the two stages and for weights
    that fall with the distance. Differs: passages are chosen by their states, not by a retriever of their words, and
    states are stored, not computed from the passages.
    """

    def __init__(self, states: NDArray[np.float16]) -> None:
        """(n, d) states of all places; read once here, for the means of passages."""
        self._states = states
        sums, counts = list[NDArray[np.float32]](), list[int]()
        for start in range(0, len(states), PASSAGE_TOKENS):
            rows = states[start : start + PASSAGE_TOKENS].astype(np.float32)
            sums.append(np.nan_to_num(rows, posinf=0.0, neginf=0.0).sum(axis=0))
            counts.append(int(rows.any(axis=1).sum()))
        known = np.array(counts, np.float32)[:, None]
        total = np.stack(sums)
        self._centre: NDArray[np.float32] = total.sum(axis=0) / max(1.0, float(known.sum()))
        self._means = _unit(total / np.maximum(known, 1.0) - self._centre) * (known > 0)

    def nearest(self, state: NDArray[np.float32], passages: int = _PASSAGES) -> list[Neighbour]:
        """The places nearest to a (d,) state, the nearest first."""
        query = _unit((state - self._centre)[None])[0]
        chosen = np.sort(np.argsort(-(self._means @ query), kind="stable")[:passages])
        starts = chosen[:, None] * PASSAGE_TOKENS + np.arange(PASSAGE_TOKENS)
        places = starts[starts < len(self._states)]
        rows = self._states[places].astype(np.float32)
        there = rows.any(axis=1) & np.isfinite(rows).all(axis=1)
        places, rows = places[there], rows[there]
        distances = 1.0 - _unit(rows - self._centre) @ query
        best = np.argsort(distances, kind="stable")[:_NEIGHBOURS]
        weights = np.exp((distances[best[:1]] - distances[best]) / _SOFTNESS)
        shares = weights / weights.sum() if len(best) else weights
        found = zip(places[best].tolist(), distances[best].tolist(), shares.tolist(), strict=True)
        return [Neighbour(*one) for one in found]


def _unit(rows: NDArray[Any]) -> NDArray[np.float32]:
    """(n, d) rows of length 1; zeros stay."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: NDArray[np.float32] = np.nan_to_num(rows / np.maximum(lengths, 1e-12)).astype(np.float32)
    return unit
