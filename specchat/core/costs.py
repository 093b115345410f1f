"""What a round's parts cost on this machine, as measured."""

from __future__ import annotations

import bisect
from dataclasses import dataclass


@dataclass(frozen=True)
class Costs:
    """Seconds per pass, by rows.

    Args:
        verify: (rows, seconds) of one pass of the target, rows ascending, at a middling context.
        draft: (rows, seconds) of one pass of the draft model; empty where there is none.
    """

    verify: tuple[tuple[int, float], ...]
    draft: tuple[tuple[int, float], ...] = ()

    def verify_s(self, rows: int) -> float:
        """Seconds of one verification over so many rows."""
        return interpolate(self.verify, rows)


def interpolate(points: tuple[tuple[int, float], ...], x: float) -> float:
    """The piecewise linear curve through the points; before them their first value, after them their last slope."""
    right = bisect.bisect_left([place for place, _ in points], x)
    if right == 0 or len(points) == 1:
        return points[0][1]
    (x0, y0), (x1, y1) = points[min(right, len(points) - 1) - 1 : min(right, len(points) - 1) + 1]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
