"""Continues the text as it went on before, or as a large store of other texts does: the longest match first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from heapq import nlargest
from operator import attrgetter, itemgetter
from typing import NamedTuple

from torch import Tensor

from specchat.core.context import Context
from specchat.core.round import Round
from specchat.core.seams import Drafter, Proposal
from specchat.core.states import HiddenStateSink, TextStates
from specchat.core.tree import Guess, TokenTree
from specchat.drafters.options import DatastoreOptions
from specchat.drafters.parts import Parts
from specchat.indexes.datastore import Datastore, Match, StateNeighbours
from specchat.indexes.ngrams import NgramIndex
from specchat.indexes.running_estimates import LearntRates

_TEXT_MATCHES = 2
"""How many of the text's longest matches are used; of the datastore only the longest is."""

TEXT, STORE, STATES = "datastore text", "datastore", "datastore states"
"""Names of proposers in the tree: a match in the text, one in the datastore, or places there with like states."""

_AS_LONG = 3
"""Places with like states are heard where a match of so many tokens is."""

_LOOKED_AHEAD = 32
"""How far they are followed."""

_NEGLIGIBLE = 0.02
"""Matches that would share less probability than this are ignored."""

_count, _length = itemgetter(1), attrgetter("length")


class _Heard(NamedTuple):
    """The next token's counts by one match.

    Args:
        source: who the tree says proposed its tokens.
        length: of the match.
        counts: the tokens that followed it, and how often.
        match: where it is, if it is the datastore's.
        places: of places with like states, where one of these tokens stands.
    """

    source: str
    length: int
    counts: Mapping[int, float]
    match: Match | None = None
    places: Mapping[int, int] | None = None


class DatastoreDrafter(Drafter):
    """Guesses what followed the last words in prompt and reply, and in a file of texts, by match length and count.

    The longest match comes first, the text's before the datastore's where they are equally long. A match is trusted
    as far as matches of its source and length held the right token so far; what is left of the probability goes to the
    next match. So a token's probability is the sum, over the matches, of what is left × trust × its share of what
    followed.

    Below one of its own guesses the same matches are followed further; below another drafter's guess the text is
    matched anew.

    Reference: Marzollo et al., SSSD: Simply-Scalable Speculative Decoding, arXiv:2411.05894. Differs: how far to trust
    a match is learnt while it runs, not fitted beforehand; how many nodes are worth their rows is the controller's
    question (`goodput`). Of a datastore with hidden states the places nearest to the target's state are heard too, as
    in Li et al., NEST, arXiv:2405.19325. Differs: that is the state one token before the root, which is the last one
    that the target has computed; of the places found, those behind which the root stands are followed.
    """

    @staticmethod
    def names_sources(options: DatastoreOptions, members: Sequence[bool]) -> bool:
        """Every guess is a copy, of a token of the text or of a file."""
        return True

    def __init__(self, options: DatastoreOptions, parts: Parts) -> None:
        self._names = {source: parts.numbered(source) for source in (TEXT, STORE, STATES)}
        self._longest = options.longest
        self._store = Datastore(parts.datastore(options.store))
        self._vocab_size = parts.vocab_size
        self._text = NgramIndex(1, options.longest)
        self._trust = LearntRates()  # by source and length of the match
        self._heard: dict[tuple[int, ...], list[_Heard]] = {}  # this round's matches, by path below the root
        self._near: StateNeighbours | None = None
        self._state: tuple[int, Tensor] | None = None  # (tokens of the text up to it, (d,) the last one's state)
        # This round's places: each with its share, and with the root and what follows there.
        self._found: list[tuple[int, float, list[int]]] | None = None
        header, stores = self._store.header, parts.resources.datastores
        same_target = stores is not None and header.target == stores.target
        shown = header.state_width == parts.target.hidden_size and header.state_layer < parts.target.layers
        shows_states = getattr(parts.target, "flexible_passes", True)  # llama.cpp does not
        if header.state_width and shown and same_target and shows_states:
            self._near = StateNeighbours(self._store.states)
            self._layer = header.state_layer
            self.hidden_state_sink = HiddenStateSink(frozenset({self._layer}), self._take)

    def _take(self, states: TextStates) -> None:
        self._state = states.end, states.layers[self._layer][-1].float().cpu()

    def start(self, history: Sequence[int]) -> None:
        """Index this history; only what is new, where it continues the one before."""
        self._heard.clear()
        self._found = None
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
        self._found = None

    def stored_text(self, source: int, most: int) -> tuple[str, int, Sequence[int]] | None:
        return self._store.text_before(source, most)

    def close(self) -> None:
        self._near, self._state, self._found = None, None, None
        del self._store

    def _hear_states(self, path: tuple[int, ...]) -> _Heard | None:
        """The tokens that followed the places with like states, where the root and this path stand behind them."""
        if self._near is None or self._state is None or self._state[0] != len(self._text) - 1:
            return None
        if self._found is None:
            (root,) = self._text.last(1)
            near = self._near.nearest(self._state[1].numpy())
            followed = ((one.place, one.weight, self._store.behind(one.place, _LOOKED_AHEAD)) for one in near)
            self._found = [one for one in followed if one[2][:1] == [root]]
        counts, places, ahead = dict[int, float](), dict[int, int](), 1 + len(path)
        for place, weight, following in self._found:
            if len(following) > ahead and tuple(following[1:ahead]) == path:
                counts[following[ahead]] = counts.get(following[ahead], 0.0) + weight
                places.setdefault(following[ahead], place + 1 + ahead)
        return _Heard(STATES, _AS_LONG, counts, None, places) if counts else None

    def _guesses(self, tail: list[int], path: tuple[int, ...], width: int) -> list[Guess]:
        heard = self._heard[path] = self._hear(tail, path)
        chances: dict[int, float] = {}
        said_by: dict[int, _Heard] = {}
        left, most = 1.0, 2 * width + 2
        for one in heard:
            source, length, counts = one.source, one.length, one.counts
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
        if heard.places is not None:
            return self._store.source_at(heard.places[token])
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
        near = self._hear_states(path)
        if not going_on:
            return self._joined(self._text.matches(run, _TEXT_MATCHES), self._store.longest(run, self._longest), near)
        longest = max((heard.length for heard in going_on if heard.source == TEXT), default=0)
        texts = self._text.matches(run[-longest - 1 :], _TEXT_MATCHES) if longest else []
        found = next((heard.match for heard in going_on if heard.match is not None), None)
        return self._joined(texts, self._store.extended(found, path[-1]) if found is not None else None, near)

    def _joined(
        self, texts: Sequence[tuple[int, dict[int, int]]], match: Match | None, near: _Heard | None
    ) -> list[_Heard]:
        heard = [_Heard(TEXT, length, counts) for length, counts in texts]
        if match is not None and match.length and (counts := self._store.followers(match)):
            heard.append(_Heard(STORE, match.length, counts, match))
        if near is not None:
            heard.append(near)
        return sorted(heard, key=_length, reverse=True)

    def _rate(self, source: str, length: int) -> float:
        return self._trust.rate((source, length), length / (length + _ASSUMED[source]))


_ASSUMED = {TEXT: 1.0, STORE: 2.0, STATES: 2.0}
"""The larger, the less a match is trusted before anything is learnt."""
