"""The measured costs of a round's parts on this machine."""

from __future__ import annotations

import bisect
import itertools
import operator
from dataclasses import dataclass

_NOISE = 0.95
"""A pass may be measured this much faster than a smaller one: medians of equal passes differ by a few per cent."""

_MOST_ROWS = 1 << 16
"""No pass that is timed has more."""


@dataclass(frozen=True)
class Costs:
    """Seconds per pass, by rows.

    Args:
        verify: (rows, seconds) of one pass of the target, rows ascending, at a middling context.
        draft: (rows, seconds) of one pass of the draft model; empty where there is none.
        node_s: what growing and judging a node takes on the host, where that is no share of a pass: a pass may wait for
            the disk.
    """

    verify: tuple[tuple[int, float], ...]
    draft: tuple[tuple[int, float], ...] = ()
    node_s: float | None = None

    def verify_s(self, rows: int) -> float:
        return interpolate(self.verify, rows)

    @property
    def plausible(self) -> bool:
        """Whether times grow with rows, up to noise, and a node takes less than a pass; otherwise something disturbed
        the measurement."""
        measured = (self.verify, self.draft) if self.draft else (self.verify,)
        passes = all(_ascending(points) and _never_cheaper(points) for points in measured)
        return passes and (self.node_s is None or 0.0 <= self.node_s < self.verify[0][1])


def marginal(points: tuple[tuple[int, float], ...], count: int) -> list[float]:
    """Marginal cost in seconds of the second row, the third, … `count` of them: slopes of the lower convex hull of the
    points, so they never fall.

    Args:
        points: at least two, ascending.
    """
    hull: list[tuple[int, float]] = []
    for point in points:
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) >= _slope(hull[-1], point):
            hull.pop()
        hull.append(point)
    slopes: list[float] = []
    for left, right in itertools.pairwise(hull):
        slopes += [_slope(left, right)] * (right[0] - left[0])
    return (slopes + slopes[-1:] * count)[:count]


def _ascending(points: tuple[tuple[int, float], ...]) -> bool:
    rows = [count for count, _ in points]
    steps = all(fewer < more for fewer, more in itertools.pairwise(rows))
    return len(points) > 1 and steps and rows[0] >= 1 and rows[-1] <= _MOST_ROWS


def _never_cheaper(points: tuple[tuple[int, float], ...]) -> bool:
    dearest = itertools.accumulate((seconds for _, seconds in points), max)
    return all(seconds >= _NOISE * most > 0 for (_, seconds), most in zip(points, dearest, strict=True))


def _slope(left: tuple[int, float], right: tuple[int, float]) -> float:
    return (right[1] - left[1]) / (right[0] - left[0])


def interpolate(points: tuple[tuple[int, float], ...], x: float) -> float:
    """The piecewise linear curve through the points; before them their first value, after them their last slope."""
    right = bisect.bisect_left(points, x, key=operator.itemgetter(0))
    if right == 0 or len(points) == 1:
        return points[0][1]
    (x0, y0), (x1, y1) = points[min(right, len(points) - 1) - 1 : min(right, len(points) - 1) + 1]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
