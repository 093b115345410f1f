"""Continues the text as it went on before, or as a large store of other texts does: the longest match first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import nlargest
from operator import itemgetter
from typing import NamedTuple

from specchat.core.context import Context
from specchat.core.round import Round
from specchat.core.seams import Drafter, Proposal
from specchat.core.tree import Guess, TokenTree
from specchat.drafters.options import DatastoreOptions
from specchat.drafters.parts import Parts
from specchat.indexes.datastore import Datastore, Match
from specchat.indexes.learnt_rates import LearntRates
from specchat.indexes.ngrams import NgramIndex

_TEXT_MATCHES = 2
"""How many of the text's longest matches are used; of the datastore only the longest is."""


TEXT, STORE = "datastore text", "datastore"
"""Names of proposers in the tree: a match in the text itself, or one in the datastore."""

_NEGLIGIBLE = 0.02
"""Matches that would share less probability than this are ignored."""

_count = itemgetter(1)


class _Heard(NamedTuple):
    """What one match says about the next token.

    Args:
        source: who the tree says proposed its tokens.
        length: of the match.
        counts: the tokens that followed it, and how often.
        match: where it is, if it is the datastore's.
    """

    source: str
    length: int
    counts: dict[int, int]
    match: Match | None = None


class DatastoreDrafter(Drafter):
    """What followed the last words in prompt and reply, and in a file of texts, merged by match length and count.

    The longest match comes first, the text's before the datastore's where they are equally long. A match is trusted
    as far as matches of its source and length held the right token so far; what is left of the probability goes to the
    next match. So a token's probability is the sum, over the matches, of what is left × trust × its share of what
    followed.

    Below one of its own guesses the same matches are followed further; below another drafter's guess the text is
    matched anew.

    Reference: Marzollo et al., SSSD: Simply-Scalable Speculative Decoding, arXiv:2411.05894. Differs: how far to trust
    a match is learnt while it runs, not fitted beforehand; how many nodes are worth their rows is the controller's
    question (`goodput`).
    """

    @staticmethod
    def names_sources(options: DatastoreOptions, members: Sequence[bool]) -> bool:
        """Every guess is a copy, of a token of the text or of a file."""
        return True

    def __init__(self, options: DatastoreOptions, parts: Parts) -> None:
        self._names = {source: parts.numbered(source) for source in (TEXT, STORE)}
        self._longest = options.longest
        self._store = Datastore(parts.datastore(options.store))
        self._vocab_size = parts.vocab_size
        self._text = NgramIndex(1, options.longest)
        self._trust = LearntRates()  # by source and length of the match
        self._heard: dict[tuple[int, ...], list[_Heard]] = {}  # this round's matches, by path below the root

    def start(self, history: Sequence[int]) -> None:
        """Index this history; only what is new, where it continues the one before."""
        self._heard.clear()
        self._text.become(history)

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        """(F,) for each node up to `width` tokens that followed its matches, the most probable first."""
        if len(self._text) != len(context.history):  # a first round without `start`, or rounds not observed
            self.start(context.history)
        tail = context.history[-self._longest :]
        return [self._guesses(tail, tuple(tree.path_tokens(node)), width) for node in frontier]

    def observe(self, round: Round) -> None:
        """Count which matches held the right token, and index the emitted tokens."""
        for place, following in enumerate(round.emitted):
            for heard in self._heard.get(tuple(round.emitted[:place]), ()):
                self._trust.count((heard.source, heard.length), following in heard.counts)
            self._text.append(following)
        self._heard.clear()

    def stored_text(self, source: int, most: int) -> tuple[str, int, Sequence[int]] | None:
        return self._store.text_before(source, most)

    def close(self) -> None:
        del self._store

    def _guesses(self, tail: list[int], path: tuple[int, ...], width: int) -> list[Guess]:
        heard = self._heard[path] = self._hear(tail, path)
        chances: dict[int, float] = {}
        said_by: dict[int, _Heard] = {}
        left, most = 1.0, 2 * width + 2
        for one in heard:
            source, length, counts, _ = one
            rate = self._rate(source, length)
            share = left * rate / sum(counts.values())
            for token, count in counts.items() if len(counts) <= most else nlargest(most, counts.items(), key=_count):
                chances[token] = chances.get(token, 0.0) + share * count
                said_by.setdefault(token, one)
            left *= 1.0 - rate
            if left < _NEGLIGIBLE:
                break
        known = [token for token in chances if token < self._vocab_size]  # a tokenizer may have more than its model
        best = sorted(known, key=chances.__getitem__, reverse=True)[:width]
        run = [*tail, *path][-self._longest :]
        return [
            Guess(
                token,
                logprob=math.log(chances[token]),
                proposer=self._names[said_by[token].source],
                source=self._source(said_by[token], run, token),
            )
            for token in best
        ]

    def _source(self, heard: _Heard, run: Sequence[int], token: int) -> int:
        """Where a guess is copied from; of several places in the datastore the first in the order of suffixes."""
        if heard.match is None:
            return self._text.place(run, heard.length, token)
        return self._store.source(heard.match, token)

    def _hear(self, tail: list[int], path: tuple[int, ...]) -> list[_Heard]:
        """The matches of the text up to a node, the longest first.

        Below a guess of its own only the matches that made it go on: no other source has one that is longer by more
        than it had before, and searching anew at every node would take longer than the rest of a round's work.
        """
        above = self._heard.get(path[:-1], ()) if path else ()
        going_on = [heard for heard in above if path[-1] in heard.counts]
        run = [*tail, *path][-self._longest :]
        if not going_on:
            return self._joined(self._text.matches(run, _TEXT_MATCHES), self._store.longest(run, self._longest))
        longest = max((heard.length for heard in going_on if heard.match is None), default=0)
        texts = self._text.matches(run[-longest - 1 :], _TEXT_MATCHES) if longest else []
        found = next((heard.match for heard in going_on if heard.match is not None), None)
        return self._joined(texts, self._store.extended(found, path[-1]) if found is not None else None)

    def _joined(self, texts: Sequence[tuple[int, dict[int, int]]], match: Match | None) -> list[_Heard]:
        """All of them in the order in which they are used."""
        heard = [_Heard(TEXT, length, counts) for length, counts in texts]
        if match is not None and match.length and (counts := self._store.followers(match)):
            behind = (place for place, other in enumerate(heard) if other.length < match.length)
            heard.insert(next(behind, len(heard)), _Heard(STORE, match.length, counts, match))
        return heard

    def _rate(self, source: str, length: int) -> float:
        """How often a match of this length held the right token."""
        return self._trust.rate((source, length), length / (length + _ASSUMED[source]))


_ASSUMED = {TEXT: 1.0, STORE: 2.0}
"""The larger, the less a match is trusted before anything is learnt."""
