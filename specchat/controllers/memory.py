"""As many nodes as memory has room for: a round's peak is predicted, and a stated limit is never exceeded."""

from __future__ import annotations

import dataclasses
from bisect import bisect_right

from specchat.core.budget import Budget
from specchat.core.context import Context
from specchat.core.costs import Costs
from specchat.core.memory import MemoryLimit, PairMemory
from specchat.core.round import Round
from specchat.core.seams import Controller
from specchat.registry import NoOptions


class Memory(Controller):
    """Plan the user's budget with no more nodes than fit.

    What a round will hold at most is predicted from sizes: weights, caches as they grow, what the pass works in, and
    the logits of every node, which are most of it. Whatever was held beyond all predictions, such as what a drafter
    has learnt, is taken to stay. The context is limited when the pair is loaded, so that a plain round always fits.

    Reference: SpecMemo, arXiv:2506.01986. Differs: nodes are capped round by round instead of buffers for each turn;
    one text, no batches; what was not foreseen is measured.
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
        self._kept_bytes = 0  # of the last round, which the app may still hold during the next
        self._riders = 0
        self._foreseen_bytes = 0  # the most that was predicted for a round that was done
        self._unforeseen_bytes = 0

    def plan(self, context: Context) -> Budget:
        fitting = self._fitting(len(context.history))
        if fitting >= self._ceiling.nodes:
            return dataclasses.replace(self._ceiling, why="all fit in memory")
        plural = "s" * (fitting != 1)
        return dataclasses.replace(self._ceiling, nodes=fitting, why=f"{fitting} node{plural} fit in memory")

    def observe(self, round: Round) -> None:
        """Take in what was held beyond what was predicted."""
        self._riders = max(self._riders, round.extra_rows)
        if self._limit is not None and self._pair is not None:
            tokens = round.start
            done = self.predicted_bytes(round.tree.drafted, tokens) - self._unforeseen_bytes
            prompt = self._limit.base_bytes + self._pair.prompt_bytes(tokens)
            self._foreseen_bytes = max(self._foreseen_bytes, done, prompt)
            self._unforeseen_bytes = max(self._unforeseen_bytes, self._limit.peak() - self._foreseen_bytes)
            self._kept_bytes = self._pair.kept_bytes(round.tree.drafted)

    def predicted_bytes(self, nodes: int, tokens: int) -> int:
        """The most that will be held in a round with so many nodes behind a text of so many tokens."""
        assert self._pair is not None, "asked only where a limit is stated"
        assert self._limit is not None, "asked only where a limit is stated"
        kept = max(self._kept_bytes, self._pair.kept_bytes(nodes))  # so that the number does not swing
        held = self._limit.base_bytes + self._unforeseen_bytes + kept
        return held + self._pair.round_bytes(nodes, tokens, self._riders if nodes else 0)

    def _fitting(self, tokens: int) -> int:
        """How many nodes fit, of those that the user allows."""
        most, limit = self._ceiling.nodes, self._limit
        if limit is None or self._pair is None or self.predicted_bytes(most, tokens) <= limit.bytes:
            return most
        fitting = bisect_right(range(most), limit.bytes, key=lambda nodes: self.predicted_bytes(nodes, tokens))
        return max(0, fitting - 1)
