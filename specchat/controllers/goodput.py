"""Chooses the budget with the highest goodput: expected tokens per predicted second, learnt while running."""

from __future__ import annotations

import dataclasses
import math

from specchat.controllers.learnt_costs import LearntCosts
from specchat.controllers.options import GoodputOptions
from specchat.controllers.round_statistics import UNKNOWN_RATE, RoundStatistics
from specchat.core.budget import Budget
from specchat.core.context import Context
from specchat.core.costs import Costs
from specchat.core.round import Round

_NODE_SHARE = 0.004
"""What growing and judging a node takes on the host, as a share of a token (some 15 µs where one takes 4 ms)."""

_NOTICED = 0.02
"""Fixed cost of a round, as a share of a plain one, above which the controller checks whether drafting pays."""

_CHEAP_LEVEL = 0.2
"""A level that takes a smaller share of a plain round is tried within a reply too: so is a small trained network's."""

_TRIAL_ROUNDS = 6
"""Rounds of drafting at the beginning, before anything is concluded from them."""

_SETTLED = 8
"""Rounds without a guess after which the budget is computed again."""

_TRIAL = "a trial: may guesses pay again?"


class Goodput:
    """Chooses depth, nodes, or nothing at all, every round.

    Depth k is worth E(k) / T(k): the tokens expected from a branch of that depth, by the acceptance seen at each
    depth, over the time predicted for drafting and verifying it. The best k is taken; where that is 0 the round is
    plain. With one acceptance rate a for all depths E(k) is (1 − a^(k+1)) / (1 − a).

    Where a draft model gives probabilities, the depth is not fixed before drafting. A pass below a node of worth v is
    expected to gain v times the acceptance rate, and takes the time in which recent rounds wrote so many tokens; from
    that follows the least worth at which it pays (the budget's pass price). What it proposes then costs only rows.
    Costs measured before (`Costs`) hold until rounds say otherwise, those of the draft model's passes too.

    A row's cost, in tokens that could have been written in its time, is the least acceptance probability that a guess
    must have to be drafted (the budget's prices; where a pass is bound by memory, the first rows cost next to nothing).
    Drafters' probabilities are not calibrated, so prices are divided by the measured calibration. A drafter that needs
    no model pass and gives probabilities needs no depth chosen for it: the prices decide which guesses are drafted,
    possibly none.

    Rounds without drafts give no acceptance statistics, so drafting is tried again now and then, less often after each
    trial that fails. A draft model is tried only when a reply begins, unless its passes are cheap: reading the text it
    missed would cost more than a trial is worth. Until then no passes of it are allowed, and the guesses that need no
    pass (`merge` has such) are judged separately. Results of riders are available one round later, so a trial with
    riders takes two rounds.

    Riders' rows and all that a round does besides its pass count as costs of speculation. Where passes do not pay, none
    are allowed, and a drafter that reads the target's states is not even given those (`StateTap.skip`): what it would
    cost to keep it ready is not paid while it is not used.

    Reference: Liu et al., SmartSpec, arXiv:2406.14066. Differs: acceptance is tracked per depth, and nodes are chosen
    by their own chances instead of a length for all.
    """

    def __init__(self, options: GoodputOptions, budget: Budget, costs: Costs | None = None) -> None:
        self._ceiling = budget
        self._probe_every = options.probe
        self._costs = LearntCosts(costs)
        draft_s = costs.draft[0][1] if costs is not None and costs.draft else 0.0
        self._all = RoundStatistics(options.memory, budget.depth, draft_s)  # of rounds in which models might run
        self._free = RoundStatistics(options.memory, budget.depth)  # of rounds in which they might not
        self._patience = options.probe
        self._silent_rounds = 0  # rounds without passes since the last with some
        self._known: tuple[RoundStatistics, Budget | None] | None = None  # what paid when it was last worked out

    def plan(self, context: Context) -> Budget:
        """The budget with the highest predicted goodput, within the user's own."""
        ceiling, seen = self._ceiling, self._all
        if ceiling.nodes == 0:
            return dataclasses.replace(ceiling, why="no nodes: fixed by you")
        if seen.free_with_probabilities and not self._rounds_cost_too_much(seen):
            return self._what_pays(seen) or self._plain_or_trial(seen)
        depth, goodput = self.best_depth()
        if depth > 0 or seen.drafting_rounds < _TRIAL_ROUNDS:
            return self._drafting_with_passes(depth or 1, goodput)
        if not seen.passes:
            return self._plain_or_trial(seen)
        if context.round == 0 or seen.primed or self._cheap_trial_is_due(seen):
            return Budget(1, 1, 1, why=_TRIAL)
        plan = self._what_pays(self._free) if self._free.free_with_probabilities else None
        return dataclasses.replace(plan or self._plain_or_trial(self._free), passes=False)

    def observe(self, round: Round) -> None:
        """Learn costs and acceptance from a round."""
        self._costs.add(round.rows, round.timings.verify_s)
        seen = self._all if round.budget.passes else self._free
        seen.add(round)
        if seen is self._free and seen.plain_rounds:
            self._all.add_plain(round.timings)  # what a plain round takes is the same for both
        self._silent_rounds = 0 if round.budget.passes else self._silent_rounds + 1
        if round.tree.drafted or round.riders or seen.plain_rounds % _SETTLED == 0:
            self._known = None

    def best_depth(self) -> tuple[int, float]:
        """The depth with the highest goodput, 0 for plain decoding, and that goodput in tokens per second."""
        best, best_goodput = 0, self._plain_goodput(self._all)
        expected, reach, rate = 1.0, 1.0, UNKNOWN_RATE
        for depth in range(1, self._ceiling.depth + 1):
            rate = self._all.accepted[depth - 1].given(rate)  # an unseen depth has the rate of the depth before
            reach *= rate
            expected += reach
            goodput = expected / self._round_s(depth)
            if goodput > best_goodput:
                best, best_goodput = depth, goodput
        return best, best_goodput

    def _what_pays(self, seen: RoundStatistics) -> Budget | None:
        """As deep as the user allows, at the current prices; None where no guess can be worth its price.

        Rounds without a guess hardly change the prices, so these are not computed again after each of them.
        """
        if self._known is None or self._known[0] is not seen:
            prices = self._prices(seen, self._going_rate(seen))
            self._known = seen, self._drafting(self._ceiling.depth, prices) if prices[0] < 1.0 else None
        return self._known[1]

    def _drafting_with_passes(self, depth: int, goodput: float) -> Budget:
        """As deep as this, or, where probabilities tell where a pass still pays, as deep as the user allows.

        The root gets its pass: that drafting pays at all was decided before.
        """
        seen, pass_price = self._all, 0.0
        if seen.passes and (seen.gives_probabilities or seen.drafting_rounds == 0):
            depth, goodput = self._ceiling.depth, self._going_rate(seen)
            gain = seen.rate.value * seen.calibration.value / goodput
            row_s = self._costs.verify_s(2) - self._costs.one_s
            pass_price = min(1.0, (seen.draft.step_s + row_s) / max(0.02 / goodput, gain))
        prices = tuple(min(0.95, price) for price in self._prices(seen, goodput))
        return dataclasses.replace(self._drafting(depth, prices), pass_price=pass_price)

    def _going_rate(self, seen: RoundStatistics) -> float:
        """Tokens per second as recent rounds were on average, or of rounds without guesses where that is more."""
        rows = seen.rows(math.ceil(seen.nodes.value))
        round_s = self._costs.verify_s(rows) + seen.draft.seconds(seen.steps.value) + seen.other_s.value
        return max(seen.tokens.value / round_s, self._plain_goodput(seen))

    def _plain_goodput(self, seen: RoundStatistics) -> float:
        """Tokens per second of rounds without guesses."""
        return 1.0 / (self._costs.one_s + seen.plain_other_s.value)

    def _rounds_cost_too_much(self, seen: RoundStatistics) -> bool:
        """Whether the fixed cost of a round with guesses is higher than what guesses gain."""
        one_s = self._costs.one_s
        extra_s = self._costs.verify_s(seen.rows(0)) - one_s + seen.learn_s.value - seen.plain_learn_s.value
        return extra_s > _NOTICED * one_s and self.best_depth()[0] == 0

    def _drafting(self, depth: int, prices: tuple[float, ...]) -> Budget:
        self._patience = self._probe_every
        why = f"a guess pays from {prices[0]:.0%}".replace("%", " %")
        return Budget(self._ceiling.nodes, depth, self._ceiling.width, prices, why)

    def _round_s(self, depth: int) -> float:
        nodes = min(self._ceiling.nodes, math.ceil(depth * self._all.nodes_per_level.value))
        rows = self._all.rows(nodes)
        draft_s = self._all.draft.seconds(depth * self._all.steps_per_level.value)
        return self._costs.verify_s(rows) + draft_s + self._all.other_s.value

    def _prices(self, seen: RoundStatistics, goodput: float) -> tuple[float, ...]:
        """The least chance worth each further row: the tokens that its time would have written."""
        node_s = _NODE_SHARE * self._costs.one_s
        worth = goodput / max(0.02, seen.calibration.value)
        # Where the second row costs more than later ones, as in float32, each row's marginal cost is at least the mean
        # cost of the likely rows.
        likely = max(2, math.ceil(seen.nodes.value))
        least_s = (self._costs.verify_s(seen.rows(likely)) - self._costs.one_s) / likely
        each = 1.0 + seen.riders.slope  # rows that come with a node, its own included
        rows_s = list(self._costs.rows_s(math.ceil(self._ceiling.nodes * each)))
        prices: list[float] = []
        for node in range(1, self._ceiling.nodes + 1):
            prices.append(worth * (max(each * rows_s[math.ceil(node * each) - 1], least_s) + node_s))
            if prices[-1] > 1.0:
                break  # no later row is cheaper, and no guess pays more
        return tuple(prices)

    def _plain_or_trial(self, seen: RoundStatistics) -> Budget:
        """No guesses; now and then a trial with a single one, less often after each trial that fails."""
        due = seen.plain_rounds >= self._patience
        if not due and not seen.primed:
            return Budget(nodes=0, depth=0, width=0, why=self._why_plain(seen))
        if due:
            seen.plain_rounds, self._patience = 0, self._patience * 2
        return Budget(1, 1, 1, why=_TRIAL)

    def _cheap_trial_is_due(self, seen: RoundStatistics) -> bool:
        """Whether passes that cost little have not been tried for long; the next trial comes later."""
        if self._silent_rounds < self._patience or seen.draft.seconds(1) > _CHEAP_LEVEL * self._costs.one_s:
            return False
        self._patience *= 2
        return True

    def _why_plain(self, seen: RoundStatistics) -> str:
        kept = f"guesses came true {self._all.accepted[0].value:.0%} of the time".replace("%", " %")
        left = self._patience - seen.plain_rounds
        when = "with the next reply" if self._all.passes else f"in {left} round" + "s" * (left != 1)
        return f"{kept}, trial {when}"
