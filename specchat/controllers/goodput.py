"""Chooses the budget with the highest goodput: expected tokens per predicted second, learnt while running."""

from __future__ import annotations

import dataclasses
import math

from specchat.controllers.drafting_account import DraftingAccount, PlainComparison
from specchat.controllers.learnt_costs import LearntCosts
from specchat.controllers.options import GoodputOptions
from specchat.controllers.round_statistics import UNKNOWN_RATE, RoundStatistics, besides
from specchat.core.budget import Budget
from specchat.core.context import Context
from specchat.core.costs import Costs
from specchat.core.round import Round
from specchat.core.seams import Controller

_NODE_SHARE = 0.004
"""What growing and judging a node takes on the host, as a share of a token (some 15 µs where one takes 4 ms)."""

_NOTICED = 0.02
"""Fixed cost of a round, as a share of a plain one, above which the controller checks whether drafting pays."""

_CHEAP_LEVEL = 0.3
"""Drafters whose level costs less than this share of a plain round are also tried within a reply."""

_DISTURBED = 1.25
"""Cap on a round's time, as a multiple of the predicted time."""

_COLD_S = 0.003
"""Seconds that code may take longer when it first runs: the first round with guesses is not charged for them."""

_FEW, _SETTLED = 16, 4
"""Rounds with guesses in which the budget is computed every time; rounds after which it is computed again later."""

_WATCHED = 4
"""One round of so many is learnt from where drafting surely pays: learning takes as long as a row of a small model."""

_RESTS = 8
"""Rounds for which a plain plan holds: re-planning each round would cost 2 % of a plain round."""

_ONE_GUESS = Budget(1, 1, 1, why="a trial: may guesses pay again?")


class Goodput(Controller):
    """Chooses depth, nodes, or nothing at all, every round.

    Whether to draft is decided by what rounds with drafting really took and emitted, compared with plain rounds
    (`DraftingAccount`). Until drafting surely pays, a round is plain now and then, to know what that takes.

    Depth k is worth E(k) / T(k): the tokens expected from a branch of that depth, by the acceptance seen at each
    depth, over the time predicted for drafting and verifying it. The best k is taken.

    Where a draft model gives probabilities, the depth is not fixed before drafting. A pass below a node is made only
    where the node's worth reaches the budget's pass price, which follows from the tokens that recent rounds wrote in
    the time of a pass. Costs measured before (`Costs`) hold until rounds say otherwise.

    A row's cost, in tokens that could have been written in its time, is the least acceptance probability of a guess
    that is drafted (the budget's prices), divided by the measured calibration of the drafter's probabilities. Where
    guesses need no model pass and have probabilities, prices alone decide, and no depth is chosen.

    Rounds without drafts give no acceptance statistics, so a single guess is tried now and then. A draft model is tried
    only when a reply begins, unless its passes are cheap: reading the text it missed would cost more than a trial is
    worth. Until then no passes of it are allowed, and the guesses that need no pass (`merge` has such) are judged
    separately. A trial with extra rows takes two rounds: their results come one round later.

    All that a round does besides its pass counts as a cost of speculation, extra rows too. Where passes do not pay, a
    drafter is not even given the target's states (`HiddenStateSink.skip`). Where the target's passes read other texts
    too, rows cost what they add to a pass that begins with the others' rows (`LearntCosts`).

    Reference: Liu et al., SmartSpec, arXiv:2406.14066. Differs: acceptance is tracked per depth, and nodes are chosen
    by their own chances instead of a length for all.

    Attributes:
        statistics, account: of the rounds in which models might run.
    """

    def __init__(self, options: GoodputOptions, budget: Budget, costs: Costs | None = None) -> None:
        self._ceiling = budget
        self.costs = LearntCosts(costs)
        self._node_s = costs.node_s if costs is not None else None
        draft_s = costs.draft[0][1] if costs is not None and costs.draft else 0.0
        self.statistics = RoundStatistics(options.memory, budget.depth, draft_s)
        self._free = RoundStatistics(options.memory, budget.depth)  # of rounds in which they might not
        self.account = DraftingAccount(options.probe)
        self._free_account = DraftingAccount(options.probe, credit=0.0)
        self._known: tuple[RoundStatistics, Budget | None] | None = None  # what paid when it was last worked out
        self._deep: Budget | None = None  # the same where models may run
        self._comparison = PlainComparison()
        self._sure = False  # whether drafting surely pays, and was seen often enough to know how
        self._unwatched = 0  # rounds since the last that was learnt from
        self._resting, self._rests = _ONE_GUESS, 0  # a plain plan, and for how many more rounds of this reply it holds
        self._texts = 1  # that the target reads in one pass
        self._trial_in = 0  # rounds until the next trial, by that plan

    def plan(self, context: Context) -> Budget:
        """Guesses as their prices allow while rounds with guesses gain; else none, or a trial."""
        if self._rests and context.round:
            self._rests -= 1
            self._trial_in -= 1
            return self._rest_told()
        self._rests = 0
        return self._planned(context)

    def _planned(self, context: Context) -> Budget:
        seen, account = self.statistics, self.account
        if self._ceiling.nodes == 0:
            return dataclasses.replace(self._ceiling, why="no nodes: fixed by you")
        if context.round == 0 and not account.pays and account.begin_reply():
            return _ONE_GUESS
        if not seen.passes and seen.gives_probabilities:
            return self._looked_up(seen, account)
        if account.pays:
            if self._comparison.due and not account.surely_pays:
                return Budget(nodes=0, depth=0, width=0, why="to compare with")
            self._deep = self._deep or self._drafting_with_passes()
            return self._deep
        if seen.primed or self._trial_is_due(seen, account):
            return _ONE_GUESS
        if not seen.passes:
            return self._rest(account.rounds_left(self._trial_loss(seen)))
        return dataclasses.replace(self._looked_up(self._free, self._free_account), passes=False)

    def observe(self, round: Round) -> None:
        """Learn costs and acceptance from a round.

        Where drafting surely pays, only now and then. The account does not count the others either: single rounds
        differ so much that one in place of four would often stop what pays.
        """
        if self._sure and round.budget.nodes and self._unwatched + 1 < _WATCHED:
            self._unwatched += 1
            return
        with_passes, rounds = round.budget.passes, 1 + self._unwatched
        self._unwatched = 0
        seen, account = (self.statistics, self.account) if with_passes else (self._free, self._free_account)
        self.costs.observe(round)  # first: the machine may be slower than when measured
        if round.budget.nodes:
            account.add(len(round.emitted), self._plain_rounds(round, seen), in_vain=round.tree.drafted == 0)
        else:
            account.rest()
        if not with_passes:
            self.account.rest()
        self._comparison.add(rounds, plain=round.rows == 1)
        if self.costs.texts != self._texts:  # a row has another price now, and plans that rest would not hear of it
            self._texts, self._known, self._deep, self._rests = self.costs.texts, None, None, 0
        seen.add(round)
        if seen is self._free and seen.plain_rounds:
            self.statistics.add_plain(round)  # what a plain round takes is the same for both
        self._sure = account.surely_pays and seen.drafting_rounds >= _FEW
        if seen.drafting_rounds < _FEW or (seen.drafting_rounds + seen.plain_rounds) % _SETTLED == 0:
            self._known = self._deep = None

    def learn_with(self, other: Controller) -> None:
        """Texts that share passes share what was learnt, so trials are made, and paid for, once for all of them."""
        assert isinstance(other, Goodput), "controllers of the same settings learn together"
        self.costs, self.statistics, self._free = other.costs, other.statistics, other._free
        self.account, self._free_account = other.account, other._free_account

    def save_state(self) -> bytes:
        """Nothing before a round had a guess, nor of passes that other texts shared."""
        from specchat.controllers.kept_account import ROWS, KeptAccount  # where a GPU is measured msgspec is missing

        drafted = self.statistics.drafting_rounds or self._free.drafting_rounds
        if not drafted or self.costs.texts > 1:
            return b""
        verify = tuple(self.costs.verify_s(rows) for rows in ROWS)
        account, free = self.account.balance, self._free_account.balance
        return KeptAccount(verify, self.statistics.kept(), self._free.kept(), account, free).encoded()

    def restore_state(self, state: bytes) -> None:
        """Plan from the first round on as an earlier engine did; its rounds are outweighed soon."""
        from specchat.controllers.kept_account import ROWS, KeptAccount

        kept = KeptAccount.decoded(state)
        self.costs.recall(tuple(zip(ROWS, kept.verify, strict=True)))
        self.statistics.recall(kept.statistics)
        self._free.recall(kept.free)
        self.account.recall(kept.balance)
        self._free_account.recall(kept.free_balance)

    def best_depth(self) -> tuple[int, float]:
        """The depth with the highest goodput, 0 for plain decoding, and that goodput in tokens per second."""
        best, best_goodput = 0, self._plain_goodput(self.statistics)
        expected, reach, rate = 1.0, 1.0, UNKNOWN_RATE
        for depth in range(1, self._ceiling.depth + 1):
            rate = self.statistics.accepted[depth - 1].given(rate)  # an unseen depth has the rate of the depth before
            reach *= rate
            expected += reach
            goodput = expected / self._round_s(depth)
            if goodput > best_goodput:
                best, best_goodput = depth, goodput
        return best, best_goodput

    def _what_pays(self, seen: RoundStatistics) -> Budget | None:
        """As deep as the user allows, at the current prices; None where no guess can be worth its price.

        Single rounds hardly change the prices, so these are not computed again after each of them.
        """
        if self._known is None or self._known[0] is not seen:
            prices = self._prices(seen, self._going_rate(seen))
            self._known = seen, self._drafting(self._ceiling.depth, prices) if prices[0] < 1.0 else None
        return self._known[1]

    def _looked_up(self, seen: RoundStatistics, account: DraftingAccount) -> Budget:
        """Guesses that need no pass, at the current prices; a round without any costs next to nothing as a rule."""
        if seen.gives_probabilities and (account.pays or not self._rounds_cost_more(seen)):
            plan = self._what_pays(seen)
            if plan is not None:
                return plan
        if seen.primed or self._trial_is_due(seen, account):
            return _ONE_GUESS
        return self._rest(account.rounds_left(self._trial_loss(seen)))

    def _drafting_with_passes(self) -> Budget:
        """As deep as is best, or, where probabilities tell where a pass still pays, as deep as the user allows.

        The root gets its pass: that drafting pays at all was decided before. What drafting takes is
        not known before the first time, so that is a small one.
        """
        seen, pass_price = self.statistics, 0.0
        if seen.passes and (seen.gives_probabilities or seen.drafting_rounds == 0):
            depth, goodput = self._ceiling.depth, self._going_rate(seen)
            gain = seen.rate.value * seen.calibration.value / goodput
            row_s = self.costs.verify_s(2) - self.costs.one_s
            pass_price = min(1.0, (seen.draft.step_s + row_s) / max(0.02 / goodput, gain))
        else:
            depth, goodput = self.best_depth()
        prices = tuple(min(0.95, price) for price in self._prices(seen, goodput))
        plan = dataclasses.replace(self._drafting(max(1, depth), prices), pass_price=pass_price)
        return plan if seen.drafting_rounds or seen.passes else dataclasses.replace(plan, nodes=1, depth=1, width=1)

    def _going_rate(self, seen: RoundStatistics) -> float:
        """Tokens per second as recent rounds were on average, or of rounds without guesses where that is more."""
        rows = seen.rows(math.ceil(seen.nodes.value))
        return max(seen.tokens.value / self._seconds(seen, rows, seen.steps.value), self._plain_goodput(seen))

    def _plain_goodput(self, seen: RoundStatistics) -> float:
        """Tokens per second of rounds without guesses."""
        return 1.0 / (self.costs.one_s + seen.plain_other_s.value)

    def _rounds_cost_more(self, seen: RoundStatistics) -> bool:
        """Whether rounds in which guesses may be made cost notably more than plain ones, the rows of guesses apart.

        Learning does, and so does judging where the law of every row is penalised and cut.
        """
        one_s = self.costs.one_s
        extra_s = self.costs.verify_s(seen.rows(0)) - one_s + seen.other_s.value - seen.plain_other_s.value
        return extra_s > _NOTICED * one_s

    def _plain_rounds(self, round: Round, seen: RoundStatistics) -> float:
        """How many plain rounds would have taken as long as this one.

        Before any was plain, what it took besides drafting, its pass and learning is taken to be a plain round's, too.
        """
        timings = round.timings
        plain_s = self.costs.one_s + (seen.plain_other_s.value or besides(timings, learning=False))
        took_s = timings.draft_s + self.costs.charged_s(round) + timings.other_s
        if not seen.warm:
            took_s = max(plain_s, took_s - _COLD_S)
        elif took_s > _DISTURBED * plain_s:
            steps = round.draft_passes if seen.passes else max(round.tree.depths)
            took_s = min(took_s, _DISTURBED * self._seconds(seen, round.rows, steps))
        return took_s / plain_s

    def _drafting(self, depth: int, prices: tuple[float, ...]) -> Budget:
        why = f"a guess pays from {prices[0]:.0%}".replace("%", " %")
        return Budget(self._ceiling.nodes, depth, self._ceiling.width, prices, why)

    def _round_s(self, depth: int) -> float:
        seen = self.statistics
        nodes = min(self._ceiling.nodes, math.ceil(depth * seen.nodes_per_level.value))
        return self._seconds(seen, seen.rows(nodes), depth * seen.steps_per_level.value)

    def _seconds(self, seen: RoundStatistics, rows: int, steps: float) -> float:
        """Predicted seconds of a round with so many rows and steps of drafting."""
        return self.costs.verify_s(rows) + seen.draft.seconds(steps) + seen.other_s.value

    def _prices(self, seen: RoundStatistics, goodput: float) -> tuple[float, ...]:
        """The least chance worth each further row: the tokens that its time would have written."""
        node_s = _NODE_SHARE * self.costs.one_s if self._node_s is None else self._node_s
        worth = goodput / max(0.02, seen.calibration.value)
        # Where the second row costs more than later ones, as in float32, each row's marginal cost is at least the mean
        # cost of the likely rows. Where each row costs more than the one before, the first is taken at its own cost.
        likely = range(1, max(2, math.ceil(seen.nodes.value)) + 1)
        least_s = min((self.costs.verify_s(seen.rows(nodes)) - self.costs.one_s) / nodes for nodes in likely)
        each = 1.0 + seen.extra_rows.slope  # rows that come with a node, its own included
        rows_s = list(self.costs.rows_s(math.ceil(self._ceiling.nodes * each)))
        prices: list[float] = []
        for node in range(1, self._ceiling.nodes + 1):
            prices.append(worth * (max(each * rows_s[math.ceil(node * each) - 1], least_s) + node_s))
            if prices[-1] > 1.0:
                break  # no later row is cheaper, and no guess pays more
        return tuple(prices)

    def _trial_is_due(self, seen: RoundStatistics, account: DraftingAccount) -> bool:
        """Whether to try a single guess within a reply; a model whose passes are dear is not tried there."""
        if self._dear_passes(seen) or account.rounds_left(self._trial_loss(seen)):
            return False
        account.begin_trial()
        return True

    def _trial_loss(self, seen: RoundStatistics) -> float:
        """Tokens that a trial loses if it fails."""
        return self._seconds(seen, seen.rows(1), 1.0) * self._plain_goodput(seen) - 1.0

    def _dear_passes(self, seen: RoundStatistics) -> bool:
        return seen.passes and seen.draft.seconds(1) > _CHEAP_LEVEL * self.costs.one_s

    def _rest(self, left: int) -> Budget:
        """A plain round, and some more of them, of which `left` come before the next trial."""
        passes = self.statistics.passes
        if passes and not self._dear_passes(self.statistics):
            left = min(left, self.account.rounds_left(self._trial_loss(self.statistics)))
        why = f"guesses came true {self.statistics.accepted[0].value:.0%} of the time".replace("%", " %")
        self._resting = Budget(nodes=0, depth=0, width=0, why=why, passes=not passes)
        self._rests = max(0, min(_RESTS, left) - 1)
        self._trial_in = left
        return self._rest_told()

    def _rest_told(self) -> Budget:
        """The plain plan, with the time of the next trial counted from this round."""
        if self.statistics.passes:
            replies = self.account.replies_left
            when = "with the next reply" if replies == 1 else f"in {replies} replies"
        else:
            when = f"in {self._trial_in} round" + "s" * (self._trial_in != 1)
        return dataclasses.replace(self._resting, why=f"{self._resting.why}, trial {when}")
