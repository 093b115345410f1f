"""Copies from the text itself: what followed the same words earlier probably follows them again."""

from __future__ import annotations

import math
from collections.abc import Sequence

from specchat.core.context import Context
from specchat.core.round import Round
from specchat.core.seams import Drafter, Proposal
from specchat.core.tree import Guess, TokenTree
from specchat.drafters.options import PromptLookupOptions
from specchat.drafters.parts import Parts
from specchat.indexes.ngrams import NgramIndex
from specchat.indexes.running_estimates import RANKS, ContinuationRates


class PromptLookup(Drafter):
    """For each node, the tokens that followed the longest matching run before it, the most recent first.

    Prompt and reply are both searched. A node's run goes through the tree up into the history, so a copied
    passage continues itself level by level.

    Reference: Saxena, Prompt Lookup Decoding (2023); Yang et al., Inference with Reference, arXiv:2304.04487.
    Differs from transformers' version, which takes the first match from the left; and every guess says how often
    guesses of its kind were right: after a run of that length, at that place among the guesses.
    """

    @staticmethod
    def names_sources(options: PromptLookupOptions, members: Sequence[bool]) -> bool:
        """Every guess is a copy of a token of the text."""
        return True

    def __init__(self, options: PromptLookupOptions, parts: Parts) -> None:
        self.proposer = parts.proposer
        self._index = NgramIndex(options.min_ngram, options.max_ngram)
        self._rates = ContinuationRates()

    def start(self, history: Sequence[int]) -> None:
        """Index this history; only what is new, where it continues the one before."""
        self._index.become(history)

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        """(F,) for each node up to `width` tokens, each with the rate at which its kind was right."""
        if len(self._index) != len(context.history):  # a first round without `start`, or rounds not observed
            self.start(context.history)
        tail = context.history[-self._index.max_ngram :]
        return [self._guesses([*tail, *tree.path_tokens(node)], width) for node in frontier]

    def observe(self, round: Round) -> None:
        """Count which continuations were right, and index the emitted tokens."""
        tail = list(round.history[-self._index.max_ngram :])
        for token in round.emitted:
            self._rates.learn(self._index.continuations(tail, RANKS), token)
            self._index.append(token)
            tail = [*tail, token][-self._index.max_ngram :]

    def _guesses(self, run: Sequence[int], width: int) -> list[Guess]:
        run = run[-self._index.max_ngram :]
        return [
            Guess(
                token,
                logprob=math.log(self._rates.rate(size, rank)),
                proposer=self.proposer,
                source=self._index.place(run, size, token),
            )
            for rank, (token, size) in enumerate(self._index.continuations(run, width))
        ]
