"""One measured reply: its text, time and parts; and confidence intervals of ratios by a bootstrap over questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Work:
    """Where the rounds of a reply went.

    Args:
        verify_by_rows: rows in a pass → (passes, seconds): the cost of verifying, as it was met.
    """

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    draft_passes: int = 0
    draft_s: float = 0.0
    verify_s: float = 0.0
    other_s: float = 0.0
    offered_by_depth: tuple[int, ...] = ()
    accepted_by_depth: tuple[int, ...] = ()
    verify_by_rows: Mapping[int, tuple[int, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Written:
    """One reply of a contestant. Reading the prompt is `prefill_s`; `decode_s` is the rest."""

    tokens: tuple[int, ...]
    text: str
    stop: str
    prefill_s: float
    decode_s: float
    work: Work | None = None
    energy_j: float | None = None


@dataclass(frozen=True)
class Measured:
    """One reply with what it answers.

    Args:
        place: the contestant's place in this prompt's order, from 0.
        seed: of the noise it was drawn with, the same for all contestants.
    """

    contestant: str
    question_id: str
    category: str
    turn: int
    place: int
    prompt: tuple[int, ...]
    seed: int
    written: Written

    @property
    def about(self) -> tuple[str, int]:
        """Question and turn, which two replies must share to be compared."""
        return self.question_id, self.turn

    @property
    def seconds_per_token(self) -> float:
        count = len(self.written.tokens)
        return self.written.decode_s / count if count else 0.0


_RESAMPLES = 2000


@dataclass(frozen=True)
class Interval:
    """A ratio and the range that 95 of 100 resamples fall into. The range is None where there is one question."""

    value: float
    low: float | None = None
    high: float | None = None


def ratio_of_totals(above: Sequence[float], below: Sequence[float], seed: int = 0) -> Interval:
    """Σ above / Σ below with a 95 % percentile bootstrap over the pairs.

    Questions are drawn anew with replacement, numerator and denominator together, so the range covers what other
    questions of the same kind would have given; it says nothing of a machine that was busy all the time.
    """
    assert len(above) == len(below), "one denominator for each numerator"
    count = len(above)
    if not count or sum(below) <= 0:
        return Interval(0.0)
    value = sum(above) / sum(below)
    if count == 1:
        return Interval(value)
    drawn = np.random.default_rng(seed).integers(count, size=(_RESAMPLES, count))
    totals = (np.asarray(part, np.float64)[drawn].sum(axis=1) for part in (above, below))
    ratios = np.sort(np.divide(*totals)).tolist()
    return Interval(value, _quantile(ratios, 0.025), _quantile(ratios, 0.975))


def _quantile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    left = int(place)
    right = min(left + 1, len(ordered) - 1)
    return ordered[left] + (ordered[right] - ordered[left]) * (place - left)
