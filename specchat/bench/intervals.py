"""Confidence intervals of ratios: a bootstrap over the questions."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

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
    chance = random.Random(seed)
    ratios: list[float] = []
    for _ in range(_RESAMPLES):
        drawn = chance.choices(range(count), k=count)
        ratios.append(sum(above[i] for i in drawn) / sum(below[i] for i in drawn))
    ratios.sort()
    return Interval(value, _quantile(ratios, 0.025), _quantile(ratios, 0.975))


def _quantile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    left = int(place)
    right = min(left + 1, len(ordered) - 1)
    return ordered[left] + (ordered[right] - ordered[left]) * (place - left)
