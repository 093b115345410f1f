"""Whether samples follow a law: Pearson's chi-square, with rare outcomes pooled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

_SMALLEST_EXPECTED = 5.0
"""Outcomes expected less often than this are counted together: the statistic is not chi-square there."""


@dataclass(frozen=True)
class Fit:
    """How well samples fit a law. `p_value` is how often samples of that very law would look this bad or worse."""

    samples: int
    statistic: float
    degrees: int
    p_value: float


def fit(samples: Sequence[Hashable], law: Mapping[Hashable, float]) -> Fit:
    """Compare samples with the exact probabilities of some outcomes.

    Args:
        law: outcome → probability; what is missing to 1 belongs to all other outcomes together.

    Returns:
        The fit; 0 degrees of freedom, and a p-value of 1, where the samples are too few to tell anything.
    """
    count, seen = len(samples), Counter(samples)
    bins: list[tuple[float, int]] = []
    rest_expected, rest_seen = count * max(0.0, 1.0 - sum(law.values())), count
    for outcome, probability in law.items():
        if count * probability >= _SMALLEST_EXPECTED:
            bins.append((count * probability, seen[outcome]))
            rest_seen -= seen[outcome]
        else:
            rest_expected += count * probability
    if rest_expected >= _SMALLEST_EXPECTED:
        bins.append((rest_expected, rest_seen))
    elif bins:  # too rare to stand alone: counted with the rarest of the others
        place = min(range(len(bins)), key=lambda i: bins[i][0])
        bins[place] = (bins[place][0] + rest_expected, bins[place][1] + rest_seen)
    statistic = sum((found - expected) ** 2 / expected for expected, found in bins)
    degrees = max(0, len(bins) - 1)
    return Fit(count, statistic, degrees, tail(statistic, degrees))


def tail(statistic: float, degrees: int) -> float:
    """The chance that a chi-square variable with so many degrees of freedom is at least this large."""
    if degrees < 1:
        return 1.0
    import torch

    half = torch.tensor([degrees / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))
