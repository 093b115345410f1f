"""Proposes n-grams that the target itself computes in parallel, several places ahead, as extra rows of its passes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from specchat.core.context import Context
from specchat.core.reading import Reading
from specchat.core.request import ExtraRow
from specchat.core.round import Round
from specchat.core.seams import Drafter, Proposal
from specchat.core.tree import ROOT, Guess, TokenTree
from specchat.drafters.options import LookaheadOptions
from specchat.drafters.parts import Parts
from specchat.indexes.embedding_rows import EmbeddingRows
from specchat.indexes.running_estimates import RANKS, ContinuationRates

_MOST_RUNS = 65536
"""Runs whose continuations are kept; those that were not added for longest go first."""


class Lookahead(Drafter):
    """Extends a window of guessed tokens in every pass, and proposes the n-grams that come out of it.

    The window's rows are extra rows of the target's own pass over the tree, so n-grams cost rows and no passes. What is
    proposed at a node are the n-grams of the pool that begin with the last tokens before it.

    Reference: Fu et al., Break the Sequential Dependency of LLM Inference Using Lookahead Decoding, arXiv:2402.02057.
    Differs: the window is full from the first round on, begun with tokens of the text; where nothing longer fits, an
    n-gram is proposed after its first token anywhere in the tree, not after the root alone; a guess says how often
    guesses of its kind were right. As with the authors' settings, the window moves up by one place a round, however
    many tokens were emitted. N-grams of the prompt are left to `prompt_lookup`, with which it can be merged.
    """

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

    def _said(self, reading: Reading) -> list[int]:
        """(W,) the likeliest token after each tip of the window. One copy to the host."""
        tips = self._window.tips()
        extra_rows = reading.best_after_extra_rows([tip for tip in tips if tip is not None], 1)
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


class WindowRow(NamedTuple):
    """A token of the window as a row of the target's pass, behind row `after`; None for the root."""

    token: int
    after: int | None


class LookaheadWindow:
    """A trunk of guesses that follow the root, and below each of its places a branch of later guesses.

    With W columns and n-grams of N tokens the trunk holds W − 1 tokens, the oldest guesses for the next places. Column
    i begins after the trunk's token i − 1, column 0 after the root; its branch holds N − 2 tokens, each guessed one
    round later than the one before. One pass computes the next token of every column in parallel. A column with that
    token is an n-gram; then every column moves up by one place, and its first token becomes the trunk's.

    At first the window holds tokens of the text, since something has to stand there. Their n-grams do not count.

    Reference: Fu et al., Break the Sequential Dependency of LLM Inference Using Lookahead Decoding, arXiv:2402.02057.
    """

    def __init__(self, columns: int, ngram: int) -> None:
        self._columns = columns
        self._levels = ngram - 2
        self._trunk: list[int] = []
        self._branches: list[list[int]] = []
        self._age = 0

    @property
    def size(self) -> int:
        """Rows that it adds to a pass."""
        return len(self._trunk) + self._columns * self._levels

    def begin(self, text: Sequence[int]) -> None:
        """Start anew, with tokens from all over the text."""
        count = self._columns - 1 + self._columns * self._levels
        tokens = [text[place * len(text) // count] for place in range(count)]
        self._trunk, rest = tokens[: self._columns - 1], tokens[self._columns - 1 :]
        self._branches = [rest[i * self._levels : (i + 1) * self._levels] for i in range(self._columns)]
        self._age = 0

    def rows(self) -> list[WindowRow]:
        """Every token of the window, the trunk first, then column by column."""
        rows = [WindowRow(token, place - 1 if place else None) for place, token in enumerate(self._trunk)]
        for column, branch in enumerate(self._branches):
            after = column - 1 if column else None
            for token in branch:
                rows.append(WindowRow(token, after))
                after = len(rows) - 1
        return rows

    def tips(self) -> list[int | None]:
        """(W,) for each column the row after which its next token is computed; None for the root."""
        if self._levels:
            return [self._columns - 2 + (column + 1) * self._levels for column in range(self._columns)]
        return [column - 1 if column else None for column in range(self._columns)]

    def advance(self, root: int, said: Sequence[int]) -> list[tuple[int, ...]]:
        """Take in the next token of every column; returns the n-grams that are the target's own.

        Args:
            root: the token before the window.
            said: (W,) the token computed after each tip.
        """
        columns = [[*branch, token] for branch, token in zip(self._branches, said, strict=True)]
        keys = [root, *self._trunk]
        own = self._age >= self._levels
        ngrams = [(key, *column) for key, column in zip(keys, columns, strict=True)] if own else []
        self._trunk = [column[0] for column in columns[1:]]
        self._branches = [column[1:] for column in columns]
        self._age += 1
        return ngrams


class NgramPool:
    """N-grams by their beginnings: for every beginning the tokens that may follow, the latest last.

    Args:
        length: tokens of an n-gram.
        kept: how many different tokens are kept for one beginning.
    """

    def __init__(self, length: int, kept: int) -> None:
        self.length = length
        self._kept = kept
        self._after: dict[tuple[int, ...], dict[int, None]] = {}

    def add(self, ngram: Sequence[int]) -> None:
        """Keep an n-gram; the oldest continuation of the same beginning goes where there are too many."""
        for end in range(1, len(ngram)):
            run = tuple(ngram[:end])
            followers = self._after.pop(run, None) or {}
            self._after[run] = followers
            followers.pop(ngram[end], None)
            followers[ngram[end]] = None
            if len(followers) > self._kept:
                del followers[next(iter(followers))]
        while len(self._after) > _MOST_RUNS:
            del self._after[next(iter(self._after))]

    def continuations(self, run: Sequence[int], limit: int) -> list[tuple[int, int]]:
        """Up to `limit` tokens that may follow `run`, each with the length of the n-gram's beginning that it follows.

        The longest beginning first, of equals the latest n-gram first.
        """
        found: dict[int, int] = {}
        for size in range(min(self.length - 1, len(run)), 0, -1):
            for token in reversed(self._after.get(tuple(run[len(run) - size :]), {})):
                if len(found) >= limit:
                    return list(found.items())
                found.setdefault(token, size)
        return list(found.items())

    def clear(self) -> None:
        self._after.clear()
