"""For every token, the successors to which the target last gave the highest logits; they are proposed again."""

from __future__ import annotations

import itertools
import math
from array import array
from collections.abc import Sequence

from specchat.core.compiled_guessing import CompiledTable, GrowthPlan
from specchat.core.context import Context
from specchat.core.head_needs import LIKELIEST, HeadNeeds
from specchat.core.request import ExtraRow
from specchat.core.round import Round
from specchat.core.seams import Proposal
from specchat.core.states import HiddenStateSink
from specchat.core.tree import Guess, TokenTree, point
from specchat.drafters.compiled_search import lone_search
from specchat.drafters.options import TokenRecyclingOptions
from specchat.drafters.parts import Parts
from specchat.drafters.points_alone import points_alone
from specchat.indexes.successors import Successors

_HABIT = 32
"""Weight of the acceptance rates assumed at the beginning, in observed tokens."""


class TokenRecycling:
    """Proposes after every node the successors of its token, from a table that every verified node refreshes.

    Verification computes the target's logits after rejected nodes too; the top k of each are kept as the successors
    of that node's token. The table knows no context beyond one token, but it is always recent, takes a table lookup
    per node, and grows wide trees. It outlives texts.

    The log-probability of a successor is how often its rank was right so far: for every emitted token, where it stood
    among the successors of the token before it.

    Reference: Luo et al., Turning Trash into Treasure: Token Recycling, arXiv:2408.08696. Differs: a token that was
    never seen proposes nothing instead of zeros; where a token occurs twice in a tree, the accepted
    node's successors are kept; the tree is chosen by the policy (`template` is the paper's), so ranks carry
    probabilities.
    """

    taps: Sequence[int] = ()
    hidden_state_sink: HiddenStateSink | None = None
    needs: HeadNeeds = LIKELIEST
    passes = 0
    draw_kinds = staticmethod(points_alone)

    def __init__(self, options: TokenRecyclingOptions, parts: Parts) -> None:
        self.proposer = parts.proposer
        self._remember = options.remember
        self._vocab_size = parts.vocab_size
        self._successors = Successors(parts.vocab_size, options.k)
        self._search = lone_search(self)
        self._forget()

    def start(self, history: Sequence[int]) -> None:
        """The table is about tokens, not about a text: it stays, unless the options say otherwise."""
        if not self._remember:
            self._forget()

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        """(F,) for each node up to `width` successors of its token, by rank."""
        logprobs = self._logprobs()[:width]
        return [self._guesses(tree.tokens[node], logprobs) for node in frontier]

    def grow_at_once(self, context: Context, plan: GrowthPlan) -> TokenTree | None:
        """The tree of what `propose` says, in one call of compiled code."""
        return None if self._search is None else self._search.grow(context, plan)

    def compiled(self, context: Context, tokens: Sequence[int], rows: int) -> CompiledTable:
        """The table, with the log-probabilities of ranks as they are now."""
        self._by_rank[:] = array("d", self._logprobs())
        return self._table

    def count_passes(self, count: int) -> None:
        """It runs no network."""

    def extra_rows(self, tree: TokenTree) -> Sequence[ExtraRow]:
        """None: it needs nothing of the target's pass but the reading."""
        return ()

    def observe(self, round: Round) -> None:
        """Count at which rank emitted tokens stood, and store the top k after every verified node."""
        self._count_ranks([round.tree.tokens[0], *round.emitted])
        self._learn(round)

    def close(self) -> None:
        """Nothing outlives it."""

    def _guesses(self, token: int, logprobs: Sequence[float]) -> list[Guess]:
        ranked = zip(self._successors.after(token), logprobs, strict=False)
        return [point(successor, logprob, self.proposer) for successor, logprob in ranked]

    def _logprobs(self) -> list[float]:
        """Of a successor by its rank."""
        return [math.log(hits / self._seen) for hits in self._hits]

    def _count_ranks(self, text: Sequence[int]) -> None:
        for token, following in itertools.pairwise(text):
            successors = self._successors.after(token)
            if not successors:
                continue
            self._seen += 1
            for rank, successor in enumerate(successors):
                if successor == following:
                    self._hits[rank] += 1
                    break

    def _learn(self, round: Round) -> None:
        """Keep the top k after every node that was read to the end. One copy to the host."""
        standing = set(round.verdict.path)
        nodes = sorted(round.reading.alive, key=lambda node: (node in standing, node))
        for node, best in zip(nodes, round.reading.best_after(nodes, self._successors.k), strict=True):
            self._successors.learn(round.tree.tokens[node], best)

    def _forget(self) -> None:
        self._successors.clear()
        self._seen = float(_HABIT)
        self._hits = [_HABIT * 0.45 * 0.4**rank for rank in range(self._successors.k)]
        self._by_rank = array("d", bytes(8 * self._successors.k))
        by_rank = self._by_rank.buffer_info()[0]
        self._table = CompiledTable(self._successors.address, self._vocab_size, self._successors.k, by_rank)
