"""Speculate as hard as pays: expected tokens per predicted second, learnt while it runs."""

from __future__ import annotations

import dataclasses
import itertools
import math
from dataclasses import dataclass, field

from specchat.controllers.options import GoodputOptions
from specchat.core.budget import Budget
from specchat.core.context import Context
from specchat.core.costs import Costs, interpolate, marginal
from specchat.core.round import Round
from specchat.core.tree import TokenTree

_UNKNOWN_ROW = 0.1
"""What an extra row is taken to cost, as a share of one token, until it is measured."""

_UNKNOWN_RATE = 0.6
"""How many guesses at the first depth are taken to stand until it is known."""

_NODE_SHARE = 0.004
"""What growing and judging a node takes on the host, as a share of a token (some 15 µs where one takes 4 ms)."""

_NOTICED = 0.02
"""What a round may cost beside its nodes, as a share of a plain one, before anybody asks whether it pays."""

_TRIAL_ROUNDS = 4
"""Rounds of drafting at the beginning, before anything is concluded from them."""


class Goodput:
    """Chooses depth, nodes, or nothing at all, every round.

    Depth k is worth E(k) / T(k): the tokens expected from a branch of that depth, by the acceptance seen at each
    depth, over the time predicted for drafting and verifying it. The best k is taken; where that is 0 the round is
    plain. With one acceptance rate a for all depths E(k) is (1 − a^(k+1)) / (1 − a).

    What a row costs, in tokens that could have been written meanwhile, is the least chance a guess must have to earn
    its row (the budget's prices; where memory is what a pass waits for, the first rows cost next to nothing). Drafters
    overrate or underrate themselves, so prices are corrected by how their promises came true. A drafter that costs
    next to nothing and says how sure it is needs no depth chosen for it: the prices take what pays and leave the
    rest, down to nothing at all.

    While nothing is drafted nothing is learnt, so the drafter is tried again now and then, less often each time it
    fails. A draft model is tried only when a reply begins: catching up later would cost more than a trial can tell.
    What a drafter has from its riders it has for the round after them, so its trials take two rounds.

    Rows that ride along, and the time that learning takes where there are drafts, are part of what speculating costs.

    Reference: Liu et al., SmartSpec, arXiv:2406.14066. Differs: acceptance is tracked per depth, and nodes are chosen
    by their own chances instead of a length for all.
    """

    def __init__(self, options: GoodputOptions, budget: Budget, costs: Costs | None = None) -> None:
        self._ceiling = budget
        self._probe_every = options.probe
        self._costs = _LearntCosts(costs)
        self._accepted = [_Average(options.memory, _UNKNOWN_RATE) for _ in range(budget.depth)]
        self._kept_promises = _Average(options.memory, 1.0)
        self._nodes_per_level = _Average(options.memory, 1.0)
        self._level_s = _Average(options.memory, 0.0)
        self._tokens = _Average(options.memory, 1.0)
        self._nodes = _Average(options.memory, 1.0)
        self._riders_per_row = _Average(options.memory, 0.0)
        self._learn_s = _Average(options.memory, 0.0)
        self._plain_learn_s = _Average(options.memory, 0.0)
        self._passes = False  # whether drafting runs a model
        self._promises = False  # whether guesses come with probabilities
        self._drafting_rounds = 0
        self._plain_rounds = 0
        self._primed = False  # whether the last round had riders and no guesses yet
        self._patience = options.probe

    def plan(self, context: Context) -> Budget:
        """The budget with the highest predicted goodput, within the user's own."""
        ceiling = self._ceiling
        if ceiling.nodes == 0:
            return dataclasses.replace(ceiling, why="no nodes: fixed by you")
        if self._sure_of_itself and not self._rounds_cost_too_much():
            prices = self._prices(self._goodput())
            return self._plain_or_probe(context) if prices[0] >= 1.0 else self._drafting(ceiling.depth, prices)
        depth, goodput = self.best_depth()
        if depth == 0 and self._drafting_rounds >= _TRIAL_ROUNDS:
            return self._plain_or_probe(context)
        return self._drafting(depth or 1, tuple(min(0.95, price) for price in self._prices(goodput)))

    def observe(self, round: Round) -> None:
        """Learn costs and acceptance from a round."""
        tree, timings = round.tree, round.timings
        self._costs.add(round.rows, timings.verify_s)
        self._tokens.add(float(len(round.emitted)))
        self._nodes.add(float(tree.drafted))
        self._primed = tree.drafted == 0 and round.riders > 0 and not self._primed
        if round.budget.nodes:
            self._riders_per_row.add(round.riders / len(tree))
        if tree.drafted == 0:
            self._plain_rounds += 1
            self._plain_learn_s.add(timings.learn_s)
            return
        self._drafting_rounds += 1
        self._learn_s.add(timings.learn_s)
        self._passes = self._passes or round.draft_passes > 0
        levels = max(tree.depths)
        self._level_s.add(timings.draft_s / levels)
        self._nodes_per_level.add(tree.drafted / levels)
        for depth in range(1, min(levels, len(self._accepted)) + 1):
            if round.accepted >= depth - 1:
                self._accepted[depth - 1].add(float(round.accepted >= depth))
        promised = expected_accepted(tree)
        if promised is not None:
            self._promises = True
            self._kept_promises.add(round.accepted / max(promised, 0.05), weight=promised)

    def best_depth(self) -> tuple[int, float]:
        """The depth with the highest goodput, 0 for plain decoding, and that goodput in tokens per second."""
        best, best_goodput = 0, self._plain_goodput()
        expected, reach, rate = 1.0, 1.0, _UNKNOWN_RATE
        for depth in range(1, self._ceiling.depth + 1):
            rate = self._accepted[depth - 1].given(rate)  # where nobody has been yet it is as the depth before
            reach *= rate
            expected += reach
            goodput = expected / self._round_s(depth)
            if goodput > best_goodput:
                best, best_goodput = depth, goodput
        return best, best_goodput

    @property
    def _sure_of_itself(self) -> bool:
        """Whether guesses cost no pass and come with their chances."""
        return self._promises and not self._passes

    def _goodput(self) -> float:
        """Tokens per second of late, and no less than plain decoding's."""
        nodes = math.ceil(self._nodes.value)
        round_s = self._costs.verify_s(self._rows(nodes)) + self._level_s.value + self._learn_s.value
        return max(self._tokens.value / round_s, self._plain_goodput())

    def _plain_goodput(self) -> float:
        """Tokens per second of rounds without guesses."""
        return 1.0 / (self._costs.verify_s(1) + self._plain_learn_s.value)

    def _rows(self, nodes: int) -> int:
        """Rows of a pass over so many guesses, riders included."""
        return math.ceil((1 + nodes) * (1.0 + self._riders_per_row.value))

    def _rounds_cost_too_much(self) -> bool:
        """Whether what a round with guesses costs before its first node eats up what guesses bring."""
        one = self._costs.verify_s(1)
        extra_s = self._costs.verify_s(self._rows(0)) - one + self._learn_s.value - self._plain_learn_s.value
        return extra_s > _NOTICED * one and self.best_depth()[0] == 0

    def _drafting(self, depth: int, prices: tuple[float, ...]) -> Budget:
        self._plain_rounds, self._patience = 0, self._probe_every
        why = f"a guess pays from {prices[0]:.0%}".replace("%", " %")
        return Budget(self._ceiling.nodes, depth, self._ceiling.width, prices, why)

    def _round_s(self, depth: int) -> float:
        nodes = min(self._ceiling.nodes, math.ceil(depth * self._nodes_per_level.value))
        return self._costs.verify_s(self._rows(nodes)) + depth * self._level_s.value + self._learn_s.value

    def _prices(self, goodput: float) -> tuple[float, ...]:
        """The least chance worth each further row: the tokens that its time would have written."""
        node_s = self._level_s.value if self._passes else _NODE_SHARE * self._costs.verify_s(1)
        worth = goodput / max(0.02, self._kept_promises.value)
        # Where the step from one row to two is the dearest, as in float32, no row is had for less than its share of it.
        likely = max(2, math.ceil(self._nodes.value))
        least_s = (self._costs.verify_s(self._rows(likely)) - self._costs.verify_s(1)) / likely
        each = 1.0 + self._riders_per_row.value  # rows that come with a node, its own included
        rows_s = self._costs.rows_s(math.ceil(self._ceiling.nodes * each))
        nodes_s = (each * rows_s[math.ceil(node * each) - 1] for node in range(1, self._ceiling.nodes + 1))
        return tuple(max(0.0, worth * (max(seconds, least_s) + node_s)) for seconds in nodes_s)

    def _plain_or_probe(self, context: Context) -> Budget:
        due = context.round == 0 if self._passes else self._plain_rounds >= self._patience
        if not due and not self._primed:
            return Budget(nodes=0, depth=0, width=0, why=self._why_plain())
        if due:
            self._plain_rounds, self._patience = 0, self._patience * 2
        return Budget(1, 1, 1, why="a trial: may guesses pay again?")

    def _why_plain(self) -> str:
        kept = f"guesses came true {self._accepted[0].value:.0%} of the time".replace("%", " %")
        left = self._patience - self._plain_rounds
        return f"{kept}, trial " + ("with the next reply" if self._passes else f"in {left} round" + "s" * (left != 1))


@dataclass
class _Average:
    """A mean that forgets: the last `memory` values count, older ones fade. Begins at a prior worth two values."""

    memory: int
    prior: float
    _sum: float = field(init=False, default=0.0)
    _weight: float = field(init=False, default=0.0)
    _prior_weight: float = field(init=False, default=2.0)

    def add(self, value: float, weight: float = 1.0) -> None:
        fade = 1.0 - 1.0 / self.memory
        self._sum = self._sum * fade + value * weight
        self._weight = self._weight * fade + weight
        self._prior_weight *= fade

    @property
    def value(self) -> float:
        return self.given(self.prior)

    def given(self, prior: float) -> float:
        """The mean, had one begun with another prior."""
        return (self._sum + self._prior_weight * prior) / (self._weight + self._prior_weight)


class _LearntCosts:
    """Seconds of a verification by rows: the profile's, corrected by what rounds really took.

    A longer context or a busy machine makes all passes dearer, so what rounds take is first of all one factor on the
    whole curve. Were every number of rows corrected by itself, those that occur would part from those that do not,
    and the row between them would look dear or cheap for no reason. The curve itself changes slowly.
    """

    def __init__(self, costs: Costs | None) -> None:
        self._shape: dict[int, float] = dict(costs.verify) if costs else {}
        self._factor = 1.0
        self._points: tuple[tuple[int, float], ...] = ()
        self._rows: list[float] = []
        self._draw()

    def add(self, rows: int, seconds: float) -> None:
        """One verification was timed. A pass that took far longer than usual was disturbed and counts little."""
        if not self._shape:
            self._shape[rows] = seconds
            self._draw()
            return
        drawn = interpolate(self._points, rows)
        seconds = min(seconds, 2 * drawn * self._factor)
        self._factor += 0.1 * (seconds / drawn - self._factor)
        if rows > 1:  # one row is what the others are measured by
            known = self._shape.get(rows, drawn)
            self._shape[rows] = known = known + 0.02 * (seconds / self._factor - known)
            if abs(known - drawn) > 0.01 * drawn:
                self._draw()

    def verify_s(self, rows: int) -> float:
        """Predicted seconds of a verification."""
        return self._factor * interpolate(self._points, rows)

    def rows_s(self, count: int) -> list[float]:
        """Predicted seconds that each row after the first adds, never less than the one before."""
        if len(self._rows) != count:
            self._rows = marginal(self._points, count)
        return [self._factor * seconds for seconds in self._rows]

    def _draw(self) -> None:
        """The curve through what was seen: two points or more, the first of one row.

        More rows never cost less: what noise says to the contrary is not believed.
        """
        known = sorted(self._shape.items()) or [(1, 1.0)]
        rows, seconds = known[0]
        one = seconds / (1 + _UNKNOWN_ROW * (rows - 1))
        if rows > 1:
            known.insert(0, (1, one))
        if len(known) == 1:
            known.append((2, seconds + _UNKNOWN_ROW * one))
        most = itertools.accumulate((seconds for _, seconds in known), max)
        self._points = tuple((rows, seconds) for (rows, _), seconds in zip(known, most, strict=True))
        self._rows = []


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
