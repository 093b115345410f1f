"""A straight line through measurements, by least squares in which recent ones count more."""

from __future__ import annotations

_FLAT = 1e-3
"""Variance of x, relative to its square, below which the measurements say nothing about the slope."""


class RecentLinearFit:
    """y = a + b x by weighted least squares; each new point makes all earlier ones count `memory` times as much.

    Once the x stop varying, the slope stays what it was and the line only moves up and down. It never falls.
    """

    def __init__(self, memory: float = 0.95) -> None:
        self._memory = memory
        self._weight = self._x = self._y = self._xx = self._xy = 0.0
        self._slope = 0.0
        self.known = False

    def add(self, x: float, y: float) -> None:
        """Take in one measurement."""
        sums = (self._weight, self._x, self._y, self._xx, self._xy)
        new = (1.0, x, y, x * x, x * y)
        self._weight, self._x, self._y, self._xx, self._xy = (
            old * self._memory + more for old, more in zip(sums, new, strict=True)
        )
        variance = self._weight * self._xx - self._x * self._x
        if variance > _FLAT * self._x * self._x:
            self._slope = max(0.0, (self._weight * self._xy - self._x * self._y) / variance)
            self.known = True

    @property
    def slope(self) -> float:
        """What one more x adds to y."""
        return self._slope

    def at(self, x: float) -> float:
        """The line's y; there must have been a measurement."""
        return (self._y + self._slope * (x * self._weight - self._x)) / self._weight
