"""As many nodes as memory has room for: a round's peak is predicted, and a stated limit is never exceeded."""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Sequence

from specchat.core.budget import Budget
from specchat.core.constraint import MOST_FORCED, most_drafted
from specchat.core.context import Context
from specchat.core.costs import Costs
from specchat.core.memory import MemoryLimit, PairMemory, TextClaim, shares
from specchat.core.round import Round
from specchat.core.seams import Controller
from specchat.registry import NoOptions

_DECAY, _PRIOR = 0.9, 2.0
"""What a round counts after the next one; guesses that are taken to have been accepted, of twice as many, at first."""


class Memory(Controller):
    """Plan the user's budget with no more nodes than fit.

    What a round will hold at most is predicted from sizes: weights, caches as they grow, what the pass works in, and
    the logits of every node, which are most of it. Whatever was held beyond all predictions, such as what a drafter
    has learnt, is taken to stay. The context is limited when the pair is loaded, so that a plain round always fits.

    Several texts that share passes share the limit: what they may guess together is divided by what their guesses were
    worth lately, and no text plans what the others have planned already.

    Under a constraint a tree has forced text besides what the budget has: only nodes count that fit together with it.

    Reference: SpecMemo, arXiv:2506.01986. Differs: nodes are capped round by round, and no pipeline of devices; what
    was not foreseen is measured.
    """

    wants_memory = True

    def __init__(
        self,
        options: NoOptions,
        budget: Budget,
        costs: Costs | None = None,
        pair: PairMemory | None = None,
        limit: MemoryLimit | None = None,
    ) -> None:
        del options, costs
        self._ceiling = budget
        self._pair = pair
        self._limit = limit
        self._claim = TextClaim(0, budget.nodes)
        self._accepted, self._drafted = _PRIOR, 2 * _PRIOR  # nodes, those of early rounds counting less
        self._foreseen_bytes = 0  # the most that was predicted for a round that was done
        self._unforeseen_bytes = 0

    def plan(self, context: Context) -> Budget:
        others = self._claim_place(context)
        fitting = self._fitting(others)
        self._claim.nodes = min(fitting, self._claim.ceiling)
        if fitting >= self._claim.ceiling:
            return dataclasses.replace(self._ceiling, why="all fit in memory")
        if context.constraint is not None:
            fitting = min(self._ceiling.nodes, max(0, (fitting + 1) // 2 - MOST_FORCED))
            self._claim.nodes = most_drafted(fitting)
        plural = "s" * (fitting != 1)
        beside = f" beside {len(others)} other text{'s' * (len(others) > 1)}" if others else ""
        why = f"{fitting} node{plural} fit in memory{beside}"
        return dataclasses.replace(self._ceiling, nodes=fitting, why=why)

    def observe(self, round: Round) -> None:
        """Take in what was held beyond what was predicted."""
        claim, joint, nodes = self._claim, round.timings.joint, round.tree.drafted
        claim.extra_rows = max(claim.extra_rows, round.extra_rows)
        self._accepted = _DECAY * self._accepted + len(round.emitted) - 1
        self._drafted = _DECAY * self._drafted + nodes
        claim.worth = min(0.95, max(0.05, self._accepted / max(1e-9, self._drafted)))
        if self._limit is not None and self._pair is not None:
            tokens = round.start
            texts, drafted = (1, nodes) if joint is None else (joint.texts, joint.rows - joint.texts)
            done = self.predicted_bytes(drafted, tokens, texts) - self._unforeseen_bytes
            prompt = self._limit.base_bytes + self._pair.prompt_bytes(tokens)
            self._foreseen_bytes = max(self._foreseen_bytes, done, prompt)
            self._unforeseen_bytes = max(self._unforeseen_bytes, self._limit.peak() - self._foreseen_bytes)
        claim.kept, claim.nodes = nodes, 0

    def predicted_bytes(self, nodes: int, tokens: int, texts: int = 1) -> int:
        """The most that will be held in a round with so many nodes behind texts of so many tokens at most."""
        assert self._pair is not None, "asked only where a limit is stated"
        assert self._limit is not None, "asked only where a limit is stated"
        claims = self._limit.claims.all or [self._claim]
        riders = sum(claim.extra_rows for claim in claims) if nodes else 0
        widest = max(claim.ceiling for claim in claims)
        # so that the number does not swing, what is kept is at least what will be
        kept = self._pair.kept_bytes(max(nodes, sum(claim.kept for claim in claims)), texts)
        held = self._limit.base_bytes + self._unforeseen_bytes + kept
        return held + self._pair.round_bytes(nodes, tokens, riders, texts, min(nodes, widest))

    def _claim_place(self, context: Context) -> list[TextClaim]:
        """Take a place among the texts that share passes; the other texts' claims."""
        if self._limit is None:
            return []
        nodes = self._ceiling.nodes
        claim = self._limit.claims.of(context, nodes if context.constraint is None else most_drafted(nodes))
        if claim is not self._claim:
            claim.worth, claim.extra_rows, claim.kept = self._claim.worth, self._claim.extra_rows, self._claim.kept
            self._claim = claim
        return [other for other in self._limit.claims.all if other is not claim]

    def _fitting(self, others: Sequence[TextClaim]) -> int:
        """How many nodes fit, of those that the user allows."""
        limit, claims = self._limit, [self._claim, *others]
        most, tokens = sum(claim.ceiling for claim in claims), max(claim.tokens for claim in claims)
        # A text more may join before the others plan again.
        texts = len(claims) + (1 if others else 0)
        if limit is None or self._pair is None or self.predicted_bytes(most, tokens, texts) <= limit.bytes:
            return self._claim.ceiling
        fitting = bisect_right(range(most), limit.bytes, key=lambda nodes: self.predicted_bytes(nodes, tokens, texts))
        fitting = max(0, fitting - 1)
        left = fitting - sum(other.nodes for other in others)
        return max(0, min(shares(claims, fitting)[0], left))
