"""Statistics of recent rounds: acceptance by depth, calibration of the drafter's probabilities, time spent."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from specchat.core.round import Round
from specchat.core.tree import ROOT, TokenTree

UNKNOWN_RATE = 0.6
"""The acceptance rate assumed at the first depth until it is measured."""


_FEW_TIMED = 3.0
"""Draftings that are believed whatever they took."""

_LEAST_SPREAD = 0.02
"""Variance of the number of levels below which it cannot be told what one of them adds."""


@dataclass
class Average:
    """An exponentially fading mean over some `memory` values. Begins at a prior that weighs as much as two values."""

    memory: int
    prior: float
    _sum: float = field(init=False, default=0.0)
    _weight: float = field(init=False, default=0.0)
    _prior_weight: float = field(init=False, default=2.0)

    def add(self, value: float, weight: float = 1.0) -> None:
        """Count one more value; all older ones fade by 1 / `memory`."""
        fade = 1.0 - 1.0 / self.memory
        self._sum = self._sum * fade + value * weight
        self._weight = self._weight * fade + weight
        self._prior_weight *= fade

    @property
    def value(self) -> float:
        """The mean with the prior given at the beginning."""
        return self.given(self.prior)

    def given(self, prior: float) -> float:
        """The mean with another prior."""
        return (self._sum + self._prior_weight * prior) / (self._weight + self._prior_weight)


class DraftTime:
    """Seconds of drafting by levels, fitted to recent rounds: what beginning takes, and what each level adds."""

    def __init__(self, memory: int) -> None:
        """Nothing is known: all costs nothing."""
        self._fade = 1.0 - 1.0 / memory
        self._sums: tuple[float, ...] = (
            0.0,
        ) * 5  # of weights, levels, seconds, squares of levels, levels times seconds
        self.begin_s = self.level_s = 0.0

    def add(self, levels: int, seconds: float) -> None:
        """One drafting was timed. One that took far longer than predicted was disturbed and counts little."""
        if self._sums[0] >= _FEW_TIMED:
            seconds = min(seconds, 2 * self.seconds(levels))
        new = (1.0, levels, seconds, levels * levels, levels * seconds)
        self._sums = tuple(self._fade * old + value for old, value in zip(self._sums, new, strict=True))
        count, x, y, xx, xy = self._sums
        spread = xx - x * x / count
        slope = (xy - x * y / count) / spread if spread > _LEAST_SPREAD * count else y / x
        self.level_s = min(max(slope, 0.0), y / x)
        self.begin_s = (y - self.level_s * x) / count

    def seconds(self, levels: int) -> float:
        """What so many levels are expected to take."""
        return self.begin_s + levels * self.level_s


class RoundStatistics:
    """Averages over rounds; one object for those in which passes of draft models were allowed, one for the others.

    Attributes:
        accepted: for depth 1, 2, …: acceptance rate of a guess whose parent was accepted.
        calibration: accepted nodes over the number expected from the drafter's probabilities.
        passes: whether drafting ran a model.
        gives_probabilities: whether guesses came with probabilities.
        riders_per_row: riders over the rows of the trees they rode with.
        draft: what drafting took.
        other_s, plain_other_s: what judging, keeping and learning took in rounds with guesses, and in those without.
        learn_s, plain_learn_s: what learning took in rounds with guesses, and in those without.
        primed: whether the last round led to no guess yet, but to what the next one needs: results of riders, or states
            that a network waits for.
        plain_rounds: rounds without a guess since the last with one.
    """

    def __init__(self, memory: int, depth: int) -> None:
        self.accepted = [Average(memory, UNKNOWN_RATE) for _ in range(depth)]
        self.calibration = Average(memory, 1.0)
        self.nodes_per_level = Average(memory, 1.0)
        self.draft = DraftTime(memory)
        self.tokens = Average(memory, 1.0)
        self.nodes = Average(memory, 1.0)
        self.riders_per_row = Average(memory, 0.0)
        self.other_s = Average(memory, 0.0)
        self.plain_other_s = Average(memory, 0.0)
        self.learn_s = Average(memory, 0.0)
        self.plain_learn_s = Average(memory, 0.0)
        self.primed = False
        self.passes = False
        self.gives_probabilities = False
        self.drafting_rounds = 0
        self.plain_rounds = 0

    @property
    def free_with_probabilities(self) -> bool:
        """Whether guesses cost no pass of a model and come with probabilities."""
        return self.gives_probabilities and not self.passes

    def rows(self, nodes: int) -> int:
        """Rows of a pass over so many guesses, riders included."""
        return math.ceil((1 + nodes) * (1.0 + self.riders_per_row.value))

    def add(self, round: Round) -> None:
        """Learn from a round."""
        tree = round.tree
        waited = self.passes and round.budget.nodes > 0 and round.budget.passes and round.draft_passes == 0
        self.primed = tree.drafted == 0 and (round.riders > 0 or waited) and not self.primed
        if round.budget.nodes:
            self.riders_per_row.add(round.riders / len(tree))
        self.tokens.add(float(len(round.emitted)))
        self.nodes.add(float(tree.drafted))
        self.passes = self.passes or round.draft_passes > 0
        if tree.drafted == 0 and round.draft_passes == 0:
            self.plain_rounds += 1
            self.plain_learn_s.add(round.timings.learn_s)
            self.plain_other_s.add(round.timings.other_s)
            return
        self.drafting_rounds += 1
        self.learn_s.add(round.timings.learn_s)
        self.other_s.add(round.timings.other_s)
        self.plain_rounds = 0
        self.draft.add(max(*tree.depths, round.draft_passes, 1), round.timings.draft_s)
        if tree.drafted == 0:
            self.accepted[0].add(0.0)  # passes that led to no guess worth its row
            return
        self.nodes_per_level.add(tree.drafted / max(tree.depths))
        for average, stood in zip(self.accepted, stood_by_depth(round), strict=False):
            average.add(float(stood))
        promised = expected_accepted(tree)
        if promised is not None:
            self.gives_probabilities = True
            self.calibration.add(round.accepted / max(promised, 0.05), weight=promised)


def stood_by_depth(round: Round) -> list[bool]:
    """For depth 1, 2, …, as far as anything was judged: whether one of the guesses stood.

    Below the end of the accepted path there may be no guess, though other branches go deeper, or the reply ended
    there: nothing is known of that depth then.
    """
    path = round.verdict.path
    judged = round.verdict.bonus is not None and len(round.tree.children(path[-1] if path else ROOT)) > 0
    return [True] * len(path) + [False] * judged


def expected_accepted(tree: TokenTree) -> float | None:
    """How many nodes should stand if the drafter's probabilities were true; None where it gave none."""
    chance = [1.0] + [0.0] * (len(tree) - 1)
    known = False
    for parent in range(len(tree)):
        for draw in tree.draws(parent):
            if draw.guess.logprob is not None:
                known = True
                chance[draw.child] = max(chance[draw.child], chance[parent] * math.exp(min(0.0, draw.guess.logprob)))
    return sum(chance[1:]) if known else None
