"""Proposes n-grams that the target itself computes in parallel, several places ahead, as extra rows of its passes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from specchat.core.context import Context
from specchat.core.reading import Reading
from specchat.core.request import ExtraRow
from specchat.core.round import Round
from specchat.core.seams import Proposal
from specchat.core.states import HiddenStateSink
from specchat.core.tree import ROOT, Guess, TokenTree
from specchat.drafters.options import LookaheadOptions
from specchat.drafters.parts import Parts
from specchat.drafters.points_alone import points_alone
from specchat.indexes.continuation_rates import RANKS, ContinuationRates
from specchat.indexes.embedding_rows import EmbeddingRows
from specchat.indexes.lookahead_window import LookaheadWindow
from specchat.indexes.ngram_pool import NgramPool


class Lookahead:
    """Extends a window of guessed tokens in every pass, and proposes the n-grams that come out of it.

    The window's rows ride along with the target's own pass over the tree, so n-grams cost rows and no passes. What is
    proposed at a node are the n-grams of the pool that begin with the last tokens before it.

    Reference: Fu et al., Break the Sequential Dependency of LLM Inference Using Lookahead Decoding, arXiv:2402.02057.
    Differs: the window is full from the first round on, begun with tokens of the text; where nothing longer fits, an
    n-gram is proposed after its first token anywhere in the tree, not after the root alone; a guess says how often
    guesses of its kind were right. As with the authors' settings, the window moves up by one place a round, however
    many tokens were emitted. N-grams of the prompt are left to `prompt_lookup`, with which it can be merged.
    """

    taps: Sequence[int] = ()
    hidden_state_sink: HiddenStateSink | None = None
    passes = 0
    draw_kinds = staticmethod(points_alone)

    def __init__(self, options: LookaheadOptions, parts: Parts) -> None:
        self.proposer = parts.proposer
        self._embeddings = EmbeddingRows(parts.target.embed)
        self._remember = options.remember
        self._window = LookaheadWindow(options.window, options.ngram)
        self._pool = NgramPool(options.ngram, options.guesses)
        self._rates = ContinuationRates()

    def start(self, history: Sequence[int]) -> None:
        """Begin the window anew; the pool stays, unless the options say otherwise."""
        self._window.begin(history)
        if not self._remember:
            self._pool.clear()

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        """(F,) for each node up to `width` tokens of n-grams, each with the rate at which its kind was right."""
        tail = context.history[-self._pool.length :]
        return [self._guesses([*tail, *tree.path_tokens(node)], width) for node in frontier]

    def extra_rows(self, tree: TokenTree) -> Sequence[ExtraRow]:
        """The window's rows, below the root."""
        rows = self._window.rows()
        embeddings = self._embeddings.of([row.token for row in rows])
        return [ExtraRow(ROOT, embedding, row.after) for row, embedding in zip(rows, embeddings, strict=True)]

    def observe(self, round: Round) -> None:
        """Count which n-grams were right, and let the window go on from what its rows said."""
        self._learn(round)
        said = round.reading.extra_row_logits
        if said is not None and len(said) == self._window.size:
            for ngram in self._window.advance(round.tree.tokens[ROOT], self._said(round.reading)):
                self._pool.add(ngram)

    def close(self) -> None:
        """Nothing outlives it."""

    def _said(self, reading: Reading) -> list[int]:
        """(W,) the likeliest token after each tip of the window. One copy to the host."""
        tips = self._window.tips()
        extra_rows = reading.best_after_riders([tip for tip in tips if tip is not None], 1)
        own = [] if None not in tips else reading.best_after([ROOT], 1)
        return [best[0] for best in (*own, *extra_rows)]

    def _guesses(self, run: Sequence[int], width: int) -> list[Guess]:
        return [
            Guess(token, logprob=math.log(self._rates.rate(size, rank)), proposer=self.proposer)
            for rank, (token, size) in enumerate(self._pool.continuations(run, width))
        ]

    def _learn(self, round: Round) -> None:
        tail = list(round.history[-self._pool.length :])
        for following in round.emitted:
            self._rates.learn(self._pool.continuations(tail, RANKS), following)
            tail.append(following)
