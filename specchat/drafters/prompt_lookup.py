"""Copies from the text itself: what followed the same words earlier probably follows them again."""

from __future__ import annotations

from collections.abc import Sequence

from specchat.core.context import Context
from specchat.core.request import Rider
from specchat.core.round import Round
from specchat.core.seams import Proposal
from specchat.core.states import StateTap
from specchat.core.tree import Guess, TokenTree
from specchat.drafters.options import PromptLookupOptions
from specchat.drafters.parts import Parts
from specchat.errors import UsageError
from specchat.structures.ngrams import NgramIndex


class PromptLookup:
    """For each node, the tokens that followed the longest matching run before it, the most recent first.

    Prompt and reply are both searched. A node's run goes through the tree up into the history, so a copied
    passage continues itself level by level.

    Reference: Saxena, Prompt Lookup Decoding (2023); Yang et al., Inference with Reference, arXiv:2304.04487.
    Differs from transformers' version, which takes the first match from the left.
    """

    taps: Sequence[int] = ()
    text_tap: StateTap | None = None
    passes = 0

    def __init__(self, options: PromptLookupOptions, parts: Parts) -> None:
        if options.min_ngram > options.max_ngram:
            raise UsageError(
                f"prompt_lookup.min_ngram = {options.min_ngram} is above prompt_lookup.max_ngram = {options.max_ngram}"
            )
        self._index = NgramIndex(options.min_ngram, options.max_ngram)

    def start(self, history: Sequence[int]) -> None:
        self._index.clear()
        self._index.extend(history)

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        if len(self._index) != len(context.history):  # a first round without `start`, or rounds not observed
            self.start(context.history)
        longest = self._index.max_ngram
        tail = context.history[-longest:]
        return [self._guesses([*tail, *tree.path_tokens(node)][-longest:], width) for node in frontier]

    def riders(self, tree: TokenTree) -> Sequence[Rider]:
        return ()

    def observe(self, round: Round) -> None:
        self._index.extend(round.emitted)

    def _guesses(self, run: Sequence[int], width: int) -> list[Guess]:
        return [Guess(token, proposer="prompt_lookup") for token in self._index.continuations(run, width)]
