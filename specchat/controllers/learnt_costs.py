"""Verification time by number of rows: a measured profile, corrected by the times of real rounds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from specchat.core.costs import Costs, interpolate, marginal
from specchat.core.round import JointPass, Round
from specchat.indexes.running_estimates import RecentCostFit

UNKNOWN_ROW = 0.1
"""What an extra row is taken to cost, as a share of one token, until it is measured."""

_MEMORY = 1.0 - 1.0 / 64
"""How much less each verification counts than the one after it, without a profile."""

_PAIRED = 0.3
"""How far a pass of one row right after a wider one corrects what the two take relative to each other."""


class LearntCosts:
    """Seconds of a verification by rows: the profile's, corrected by what rounds really took.

    A longer context or a busy machine slows all passes alike, so round times first correct one factor on the whole
    curve; corrected one by one, frequent numbers of rows would drift apart from rare ones. The shape of the curve
    changes slowly, except where a pass of one row comes right after a wider one: the machine is as quick as it was.

    Without a profile rounds draw a straight line: a few of different sizes tell what a row adds.

    While passes read other texts too, a text is charged an equal share of a pass that reads one row of each, and what
    its further rows add to a pass that has the rows of the others. So the most tokens per charged second of each text
    are the most that all texts together get per second.
    """

    def __init__(self, costs: Costs | None) -> None:
        self._shape: dict[int, float] = dict(costs.verify if costs else ((1, 1.0), (2, 1.0 + UNKNOWN_ROW)))
        self._factor = 1.0
        self._timed = 0  # verifications
        self._last_rows = 1
        self._line = RecentCostFit(_MEMORY) if costs is None else None
        self._points: tuple[tuple[int, float], ...] = ()
        self._rows: list[float] = []
        self.texts, self._others = 1, 0  # of the last pass: texts, and rows of other texts
        self._joint: JointPass | None = None  # the last pass, if it read several texts
        self._draw()

    def observe(self, round: Round) -> None:
        """One verification was timed, of this round alone or with trees of other texts. It counts once for all."""
        joint = round.timings.joint
        texts, others = (1, 0) if joint is None else (joint.texts, joint.rows - round.rows)
        if (texts, others) != (self.texts, self._others):
            self.texts, self._others, self._rows = texts, others, []
            self._charge()
        if joint is None:
            self.add(round.rows, round.timings.verify_s)
        elif joint is not self._joint:
            self.add(joint.rows, joint.seconds)
        self._joint = joint

    def charged_s(self, round: Round) -> float:
        """Seconds of a round's verification that its text is charged with."""
        joint = round.timings.joint
        if joint is None:
            return round.timings.verify_s
        return max(joint.seconds / joint.rows, joint.seconds - self._others_s)

    def add(self, rows: int, seconds: float) -> None:
        """One verification was timed. A pass that took far longer than usual was disturbed and counts little."""
        if self._line is not None:
            self._add_to_line(self._line, rows, seconds)
            return
        drawn = self._points[0][1] if rows == 1 else interpolate(self._points, rows)
        seconds = min(seconds, 2 * drawn * self._factor)
        self._timed += 1
        paired, self._last_rows = rows == 1 < self._last_rows, rows
        if paired:
            self._correct_shape((seconds / (drawn * self._factor)) ** _PAIRED)
            return
        self._factor += max(0.1, 1.0 / self._timed) * (seconds / drawn - self._factor)
        if rows > 1:  # one row is what the others are measured by
            known = self._shape.get(rows, drawn)
            self._shape[rows] = known = known + 0.02 * (seconds / self._factor - known)
            if abs(known - drawn) > 0.01 * drawn:
                self._draw()

    def recall(self, points: tuple[tuple[int, float], ...]) -> None:
        """Begin with the curve of an earlier engine, where none was measured apart from rounds."""
        if self._line is not None and not self._timed:
            for rows, seconds in points:
                self._add_to_line(self._line, rows, seconds)

    @property
    def one_s(self) -> float:
        """Predicted seconds of a verification of one row: plain decoding's."""
        return self.verify_s(1)

    def verify_s(self, rows: int) -> float:
        """Predicted seconds of a verification of so many rows."""
        return self._factor * interpolate(self._points, rows + self._others) - self._others_s

    def rows_s(self, count: int) -> Iterator[float]:
        """Predicted seconds that each row after the first adds, never less than the one before."""
        if len(self._rows) != count:
            self._rows = marginal(self._points, count + self._others)[self._others :]
        return (self._factor * seconds for seconds in self._rows)

    @property
    def _others_s(self) -> float:
        """Seconds of a pass that other texts are charged with, whatever this one reads."""
        return self._factor * self._of_others

    def _charge(self) -> None:
        """Work out what other texts are charged with by the curve as it is drawn."""
        plain = interpolate(self._points, self.texts) / self.texts
        self._of_others = 0.0 if self.texts == 1 else interpolate(self._points, self._others + 1) - plain

    def _correct_shape(self, ratio: float) -> None:
        """One row takes `ratio` of what was thought, and any other number of rows as long as was thought."""
        self._factor *= ratio
        self._shape = {rows: seconds if rows == 1 else seconds / ratio for rows, seconds in self._shape.items()}
        self._draw()

    def _add_to_line(self, line: RecentCostFit, rows: int, seconds: float) -> None:
        if self._timed == 0:
            one = seconds / (1 + UNKNOWN_ROW * (rows - 1))
            line.add(1, one)
            line.add(3, one * (1 + 2 * UNKNOWN_ROW))
        self._timed += 1
        line.add(rows, min(seconds, 2 * line.at(rows)))
        self._shape = {1: line.at(1), 2: line.at(2)}
        self._draw()

    def _draw(self) -> None:
        """The curve through what was seen: two points or more, the first of one row.

        More rows never cost less: what noise says to the contrary is not believed.
        """
        known = sorted(self._shape.items())
        if known[0][0] > 1:
            rows, seconds = known[0]
            known.insert(0, (1, seconds / (1 + UNKNOWN_ROW * (rows - 1))))
        most = itertools.accumulate((seconds for _, seconds in known), max)
        self._points = tuple((rows, seconds) for (rows, _), seconds in zip(known, most, strict=True))
        self._rows = []
        self._charge()
