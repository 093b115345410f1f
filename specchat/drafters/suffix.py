"""Continues the text as it, or an earlier reply, continued after the same words: suffix trees that count."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from functools import lru_cache

from specchat.compiled.build import NativeUnavailable
from specchat.core.compiled_guessing import CompiledLookup
from specchat.core.context import Context
from specchat.core.round import Round
from specchat.core.seams import Proposal
from specchat.core.tree import Guess, TokenTree
from specchat.drafters.compiled_search import CompiledDrafter
from specchat.drafters.options import SuffixOptions
from specchat.drafters.parts import Parts
from specchat.indexes.native_suffix_tree import NativeDrafter, NativeSuffixTree, suffix_library
from specchat.indexes.suffix_draft import DraftLimits, SuffixDraft, draft
from specchat.indexes.suffix_tree import SuffixTree

_log = logging.getLogger(__name__)


class Suffix(CompiledDrafter):
    """Matches the end of the text in two suffix trees, this text's and past replies', and drafts what followed.

    A match of m tokens may draft `factor` × m + `offset`. The match that should save most tokens is drafted from, and
    `propose` hands its tree out node by node. Below a node that another drafter proposed, the text up to there is
    matched anew.

    What a guess claims is less than that share, by how long its match is and how often it went on so: see `chance` in
    `suffix_draft`.

    Past replies stay across chats, up to `remember` tokens; the oldest go first.

    Reference: Oliaro et al., SuffixDecoding, arXiv:2411.04975. Differs: a continuation's probability is its share of
    the occurrences that went on at all, so the end of the text itself, which matches everything, counts nothing; and
    policies are told the chance that it goes on so again, where the paper has only the share.
    """

    def __init__(self, options: SuffixOptions, parts: Parts) -> None:
        super().__init__(parts.proposer)
        self._remember = options.remember
        room = (min(options.limit(match), options.depth - match) for match in range(options.depth + 1))
        limits = DraftLimits(tuple(room), options.min_probability)
        self._local, self._past, self._drafter = suffix_trees(options.depth, limits)
        self._reply: list[int] = []
        self._drafted: dict[tuple[int, ...], tuple[SuffixDraft, int]] = {}  # path below the root → its place in a draft

    def start(self, history: Sequence[int]) -> None:
        """Remember the reply that ended, and index what is new in the history."""
        self._remember_reply()
        self._index(history)

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        """(F,) for each node up to `width` tokens of the continuation drafted there, the most likely first."""
        self._catch_up(context)
        return [self._guesses(tuple(tree.path_tokens(node)), width) for node in frontier]

    def compiled(self, context: Context, tokens: Sequence[int], rows: int) -> CompiledLookup | None:
        """The trees, where they are compiled; they hold the text."""
        self._catch_up(context)
        return self._drafter.lookup

    def observe(self, round: Round) -> None:
        """Index the emitted tokens; the continuations drafted for this round are dropped."""
        self._local.extend(round.emitted)
        self._reply.extend(round.emitted)
        self._drafted.clear()

    def _catch_up(self, context: Context) -> None:
        if len(self._local) != len(context.history):  # a first round without `start`, or rounds not observed
            self._index(context.history)

    def _index(self, history: Sequence[int]) -> None:
        """Make the text's own tree hold exactly this history; only the new part, where it goes on from before."""
        if not self._local.begins(history):
            self._local.clear()
        self._local.extend(history[len(self._local) :])
        self._drafted.clear()

    def _remember_reply(self) -> None:
        self._past.extend(self._reply)
        self._past.end_text()
        self._reply = []
        while len(self._past) > self._remember:
            self._past.forget_oldest()

    def _guesses(self, path: tuple[int, ...], width: int) -> list[Guess]:
        draft, place = self._drafted.get(path) or self._drafted.setdefault(path, (self._drafter.draft(path), 0))
        guesses: list[Guess] = []
        for number in draft.after[place]:
            token = draft.tokens[number - 1]
            self._drafted.setdefault((*path, token), (draft, number))
            if len(guesses) < width:
                guesses.append(Guess(token, logprob=math.log(draft.chances[number - 1]), proposer=self.proposer))
        return guesses


class _DrafterInPython:
    """`NativeDrafter` where nothing can be compiled."""

    lookup = None

    def __init__(self, trees: Sequence[SuffixTree], limits: DraftLimits) -> None:
        self._trees, self._limits = trees, limits

    def draft(self, path: Sequence[int]) -> SuffixDraft:
        return draft(self._trees, path, self._limits)


def suffix_trees(
    depth: int, limits: DraftLimits
) -> tuple[SuffixTree | NativeSuffixTree, SuffixTree | NativeSuffixTree, NativeDrafter | _DrafterInPython]:
    """Two empty trees, and what drafts from both: in C where it can be compiled, else in Python."""
    if _compiled():
        own, past = NativeSuffixTree(depth), NativeSuffixTree(depth)
        return own, past, NativeDrafter((own, past), limits)
    trees = SuffixTree(depth), SuffixTree(depth)
    return *trees, _DrafterInPython(trees, limits)


@lru_cache(maxsize=1)
def _compiled() -> bool:
    try:
        suffix_library()
    except NativeUnavailable as error:
        _log.info("suffix trees are those in Python: %s", error)
        return False
    return True
