"""A straight line through measurements, by least squares in which recent ones count more."""

from __future__ import annotations

_FLAT = 1e-3
"""Variance of x, relative to its square, below which the measurements say nothing about the slope."""

_COUNTED_ALIKE = 0.02
"""Variance of an x that is counted (steps, rows) below which the measurements say nothing about the slope."""


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
        memory = self._memory
        self._weight = self._weight * memory + 1.0
        self._x = self._x * memory + x
        self._y = self._y * memory + y
        self._xx = self._xx * memory + x * x
        self._xy = self._xy * memory + x * y
        if self._varied(variance := self._weight * self._xx - self._x * self._x):
            self._slope = max(0.0, (self._weight * self._xy - self._x * self._y) / variance)
            self.known = True

    def _varied(self, variance: float) -> bool:
        """Whether x varied enough to tell the slope, by its variance times the square of the weights."""
        return variance > _FLAT * self._x * self._x

    @property
    def slope(self) -> float:
        """What one more x adds to y."""
        return self._slope

    def at(self, x: float) -> float:
        """The line's y; there must have been a measurement."""
        return (self._y + self._slope * (x * self._weight - self._x)) / self._weight


class RecentCostFit(RecentLinearFit):
    """The same for costs, which do not begin below 0. While x hardly varies, y is taken to be in proportion to it."""

    def add(self, x: float, y: float) -> None:
        """Take in one measurement, neither of both below 0."""
        super().add(x, y)
        in_proportion = self._y / self._x if self._x > 0.0 else 0.0
        varied = self._varied(self._weight * self._xx - self._x * self._x)
        self._slope = min(self._slope, in_proportion) if varied else in_proportion

    def at(self, x: float) -> float:
        """The line's y; 0 before the first measurement."""
        return super().at(x) if self._weight else 0.0

    def _varied(self, variance: float) -> bool:
        return variance > _COUNTED_ALIKE * self._weight * self._weight
