"""For every token, the successors to which the target last gave the highest logits; they are proposed again."""

from __future__ import annotations

import itertools
import math
from array import array
from collections.abc import Sequence

from specchat.core.compiled_guessing import CompiledTable
from specchat.core.context import Context
from specchat.core.request import LIKELIEST, HeadNeeds
from specchat.core.round import Round
from specchat.core.seams import Proposal
from specchat.core.tree import Guess, TokenTree, point
from specchat.drafters.compiled_search import CompiledDrafter
from specchat.drafters.options import TokenRecyclingOptions
from specchat.drafters.parts import Parts

_UNKNOWN = -1

_HABIT = 32
"""Weight of the acceptance rates assumed at the beginning, in observed tokens."""


class TokenRecycling(CompiledDrafter):
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

    needs: HeadNeeds = LIKELIEST

    def __init__(self, options: TokenRecyclingOptions, parts: Parts) -> None:
        super().__init__(parts.proposer)
        self._remember = options.remember
        self._vocab_size = parts.vocab_size
        self._successors = Successors(parts.vocab_size, options.k)
        self._forget()

    def start(self, history: Sequence[int]) -> None:
        """The table is about tokens, not about a text: it stays, unless the options say otherwise."""
        if not self._remember:
            self._forget()

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        """(F,) for each node up to `width` successors of its token, by rank."""
        logprobs = self._logprobs()[:width]
        return [self._guesses(tree.tokens[node], logprobs) for node in frontier]

    def compiled(self, context: Context, tokens: Sequence[int], rows: int) -> CompiledTable:
        """The table, with the log-probabilities of ranks as they are now."""
        self._by_rank[:] = array("d", self._logprobs())
        return self._table

    def observe(self, round: Round) -> None:
        """Count at which rank emitted tokens stood, and store the top k after every verified node."""
        self._count_ranks([round.tree.tokens[0], *round.emitted])
        self._learn(round)

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


class Successors:
    """k successors per token, the likeliest first; nothing for tokens that were never learnt. 4·V·k bytes."""

    def __init__(self, vocab_size: int, k: int) -> None:
        self.k = min(k, vocab_size)
        self._vocab_size = vocab_size
        self.clear()

    def clear(self) -> None:
        self._table = array("i", [_UNKNOWN]) * (self._vocab_size * self.k)

    @property
    def address(self) -> int:
        """Of the table: (V, k) numbers, −1 where nothing was learnt. Stays until all are forgotten."""
        return self._table.buffer_info()[0]

    def learn(self, token: int, successors: Sequence[int]) -> None:
        """Replace a token's successors; takes exactly k of them."""
        assert len(successors) == self.k, "a row has k successors"
        self._table[token * self.k : (token + 1) * self.k] = array("i", successors)

    def after(self, token: int) -> Sequence[int]:
        row = self._table[token * self.k : (token + 1) * self.k]
        return row if row[0] != _UNKNOWN else ()
