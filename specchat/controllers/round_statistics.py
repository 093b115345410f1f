"""Statistics of recent rounds: acceptance by depth, calibration of the drafter's probabilities, time spent."""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING

from specchat.core.round import Round, RoundTimings
from specchat.core.tree import ROOT, TokenTree
from specchat.indexes.running_estimates import RecentCostFit

if TYPE_CHECKING:
    from specchat.controllers.kept_account import KeptStatistics

UNKNOWN_RATE = 0.6
"""The acceptance rate assumed at the first depth until it is measured."""


_FEW_TIMED = 5
"""How many draftings are compared with each other; later ones are compared with what the earlier ones predict."""

_DISTURBED = 2.0
"""Cap on the time of one drafting, as a multiple of the predicted time."""

_MEASURED_AS = (1, 2, 4)
"""Steps of the draftings as which a measured step is taken to have been timed."""


@dataclass(slots=True)
class Average:
    """An exponentially fading mean over some `memory` values. Begins at a prior that weighs as much as some values."""

    memory: int
    prior: float
    prior_weight: InitVar[float] = 2.0
    _fade: float = field(init=False)
    _sum: float = field(init=False, default=0.0)
    _weight: float = field(init=False, default=0.0)
    _prior_weight: float = field(init=False)

    def __post_init__(self, prior_weight: float) -> None:
        self._fade = 1.0 - 1.0 / self.memory
        self._prior_weight = prior_weight

    def add(self, value: float, weight: float = 1.0) -> None:
        """Count one more value; all older ones fade by 1 / `memory`."""
        fade = self._fade
        self._sum = self._sum * fade + value * weight
        self._weight = self._weight * fade + weight
        self._prior_weight *= fade

    @property
    def seen(self) -> bool:
        """Whether there was a value."""
        return self._weight > 0.0

    @property
    def value(self) -> float:
        """The mean with the prior given at the beginning."""
        return self.given(self.prior)

    def given(self, prior: float) -> float:
        """The mean with another prior."""
        weight = self._weight + self._prior_weight
        return (self._sum + self._prior_weight * prior) / weight if weight else prior


class DraftTime:
    """Seconds of drafting by steps, fitted to recent rounds: what beginning takes, and what each step adds.

    A step is a pass of a draft model where drafting ran some, else a level of the tree.
    """

    def __init__(self, memory: int, step_s: float = 0.0) -> None:
        """`step_s` is what a step was measured to take; it counts as much as a few draftings."""
        self._memory = 1.0 - 1.0 / memory
        self._line = RecentCostFit(self._memory)
        self._first: list[tuple[int, float]] = []  # the first few draftings
        for steps in _MEASURED_AS if step_s > 0.0 else ():
            self.add(steps, steps * step_s)

    @property
    def begin_s(self) -> float:
        return self._line.at(0.0)

    @property
    def step_s(self) -> float:
        return self._line.slope

    def add(self, steps: int, seconds: float) -> None:
        """One drafting was timed. One that took far longer than others was disturbed and counts little."""
        if len(self._first) < _FEW_TIMED:
            self._first.append((steps, seconds))
            usual_s = statistics.median_low(took / max(1, each) for each, took in self._first)
            self._line = RecentCostFit(self._memory)
            for each, took in self._first:
                self._line.add(each, min(took, _DISTURBED * usual_s * max(1, each)))
        else:
            self._line.add(steps, min(seconds, _DISTURBED * self.seconds(steps)))

    def seconds(self, steps: float) -> float:
        """The expected seconds of so many steps."""
        return self._line.at(steps)


_RECALLED = 8.0
"""What was averaged in an earlier engine counts as much as so many rounds."""


_MEANS = (
    "rate", "calibration", "nodes_per_level", "steps", "steps_per_level", "tokens", "nodes", "other_s", "plain_other_s",
)  # fmt: skip


class RoundStatistics:
    """Averages over rounds; one object for those in which passes of draft models were allowed, one for the others.

    Attributes:
        accepted: for depth 1, 2, …: acceptance rate of a guess whose parent was accepted.
        rate: the same for all depths together.
        calibration: accepted nodes over the number expected from the drafter's probabilities.
        extra_rows: how many there are, by the rows of the tree they ride with.
        steps, steps_per_level: steps of a drafting, and of each level of its tree; see `DraftTime`.
        other_s, plain_other_s: what judging, keeping and learning took in rounds with guesses, and in those without; 0
            until it is known. The first round with guesses does not count: code takes longer when it first runs.
        primed: whether the last round led to no guess yet, but to what the next one needs: results of extra rows, or
            states that a network waits for.
        plain_rounds: rounds without a guess since the last with one.
        drafting_rounds: rounds with a guess, some of an earlier engine included.
        warm: whether one of them was in this engine.
    """

    def __init__(self, memory: int, depth: int, step_s: float = 0.0) -> None:
        """No round yet; `step_s` is what a pass of the draft model was measured to take."""
        self.accepted = [Average(memory, UNKNOWN_RATE) for _ in range(depth)]
        self.rate = Average(memory, UNKNOWN_RATE)
        self.calibration = Average(memory, 1.0)
        self.nodes_per_level = Average(memory, 1.0)
        self.draft = DraftTime(memory, step_s)
        self.steps = Average(memory, 1.0)
        self.steps_per_level = Average(memory, 1.0)
        self.tokens = Average(memory, 1.0)
        self.nodes = Average(memory, 1.0)
        self.extra_rows = RecentCostFit(1.0 - 1.0 / memory)
        self.other_s = Average(memory, 0.0, prior_weight=0.0)
        self.plain_other_s = Average(memory, 0.0, prior_weight=0.0)
        self.primed = False
        self.passes = step_s > 0.0
        self.gives_probabilities = False
        self.drafting_rounds = 0
        self.plain_rounds = 0
        self.warm = False
        self._memory = memory

    def rows(self, nodes: int) -> int:
        """Rows of a pass over so many guesses, extra rows included."""
        return math.ceil(1 + nodes + self.extra_rows.at(1 + nodes))

    def add(self, round: Round) -> None:
        tree = round.tree
        waited = self.passes and round.budget.nodes > 0 and round.budget.passes and round.draft_passes == 0
        self.primed = tree.drafted == 0 and (round.extra_rows > 0 or waited) and not self.primed
        if round.budget.nodes:
            self.extra_rows.add(float(len(tree)), float(round.extra_rows))
        self.tokens.add(float(len(round.emitted)))
        self.nodes.add(float(tree.drafted))
        self.passes = self.passes or round.draft_passes > 0
        if tree.drafted == 0 and round.draft_passes == 0:
            self.plain_rounds += 1
            self.steps.add(0.0)
            self.add_plain(round)
            return
        self.drafting_rounds += 1
        if self.warm:
            self.other_s.add(round.timings.other_s)
        self.warm = True
        self.plain_rounds = 0
        levels = max(*tree.depths, 1)
        steps = round.draft_passes if self.passes else levels
        self.draft.add(steps, round.timings.draft_s)
        self.steps.add(float(steps))
        self.steps_per_level.add(steps / levels)
        if tree.drafted == 0:
            self.accepted[0].add(0.0)  # passes that led to no guess worth its row
            self.rate.add(0.0)
            return
        self.nodes_per_level.add(tree.drafted / max(tree.depths))
        for average, stood in zip(self.accepted, stood_by_depth(round), strict=False):
            average.add(float(stood))
            self.rate.add(float(stood))
        promised = expected_accepted(tree)
        if promised is not None:
            self.gives_probabilities = True
            self.calibration.add(round.accepted / max(promised, 0.05), weight=promised)

    def kept(self) -> KeptStatistics:
        """The statistics that a later engine may begin with."""
        from specchat.controllers.kept_account import KeptStatistics  # where a GPU is measured msgspec is missing

        means = {name: getattr(self, name).value for name in _MEANS}
        seen = itertools.takewhile(lambda average: average.seen, self.accepted)
        return KeptStatistics(
            accepted=tuple(average.value for average in seen),
            draft=(max(0.0, self.draft.begin_s), max(0.0, self.draft.step_s)),  # rounding may leave less than 0
            extra_rows=(max(0.0, self.extra_rows.at(0.0)), max(0.0, self.extra_rows.slope)),
            passes=self.passes,
            gives_probabilities=self.gives_probabilities,
            rounds=self.drafting_rounds,
            **means,
        )

    def recall(self, kept: KeptStatistics) -> None:
        """Begin with what rounds of an earlier engine said; rounds of this one outweigh it soon."""
        if not kept.rounds:
            return

        def recalled(value: float) -> Average:
            average = Average(self._memory, value, prior_weight=0.0)
            average.add(value, _RECALLED)
            return average

        self.accepted[: len(kept.accepted)] = map(recalled, kept.accepted[: len(self.accepted)])
        for name in _MEANS:
            if value := getattr(kept, name):
                setattr(self, name, recalled(value))
        (begin_s, step_s), (rows, slope) = kept.draft, kept.extra_rows
        self.draft, self.extra_rows = DraftTime(self._memory), RecentCostFit(1.0 - 1.0 / self._memory)
        for steps in _MEASURED_AS:
            self.draft.add(steps, begin_s + steps * step_s)
            self.extra_rows.add(float(steps), rows + steps * slope)
        self.passes, self.gives_probabilities = kept.passes, kept.gives_probabilities
        self.drafting_rounds = min(kept.rounds, int(_RECALLED))

    def add_plain(self, round: Round) -> None:
        """Learn what a round without a guess takes besides its pass.

        Where a network drafts, what was learnt in the round was for it: nothing is, where its passes are not allowed.
        """
        self.plain_other_s.add(besides(round.timings, learning=not (self.passes and round.budget.passes)))


def besides(timings: RoundTimings, learning: bool) -> float:
    """Seconds that a round took besides drafting and its pass, with or without what was learnt."""
    return timings.other_s if learning else timings.other_s - timings.learn_s


def stood_by_depth(round: Round) -> list[bool]:
    """For depth 1, 2, …, as far as anything was judged: whether one of the guesses stood.

    Below the end of the accepted path there may be no guess, though other branches go deeper, or the reply ended
    there: nothing is known of that depth then.
    """
    path = round.verdict.path
    judged = round.verdict.bonus is not None and (path[-1] if path else ROOT) in round.tree.parents
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
