"""Continues the text as it, or an earlier reply, went on after the same words: suffix trees that count."""

from __future__ import annotations

import heapq
import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from specchat.core.context import Context
from specchat.core.request import Rider
from specchat.core.round import Round
from specchat.core.seams import Proposal
from specchat.core.states import StateTap
from specchat.core.tree import Guess, TokenTree
from specchat.drafters.options import SuffixOptions
from specchat.drafters.parts import Parts
from specchat.drafters.points import points_alone
from specchat.structures.suffix_nodes import Place
from specchat.structures.suffix_tree import SuffixTree

_room = operator.itemgetter(0)


@dataclass
class Continuation:
    """A drafted continuation: what may follow a run, how likely each token is there, and what follows that."""

    chance: float = 1.0
    children: dict[int, Continuation] = field(default_factory=dict)


class Suffix:
    """Matches the end of the text in two suffix trees, this text's and past replies', and drafts what followed.

    For every length of match the tree says what followed and how often. The likeliest continuations are collected
    until they are as many as the match deserves (`factor` × its length + `offset`) or too unlikely; the sum of their
    path probabilities is how many tokens they should save. The match with the largest sum is drafted from, and
    `propose` hands its tree out node by node. Below a node that somebody else proposed, the text up to there is
    matched anew.

    Past replies stay across chats, up to `remember` tokens; the oldest go first.

    Reference: Oliaro et al., SuffixDecoding, arXiv:2411.04975. Differs: a continuation's probability is its share of
    the occurrences that went on at all, so the end of the text itself, which matches everything, counts nothing.
    """

    taps: Sequence[int] = ()
    text_tap: StateTap | None = None
    passes = 0
    draw_kinds = staticmethod(points_alone)

    def __init__(self, options: SuffixOptions, parts: Parts) -> None:
        self._options = options
        self._local = SuffixTree(options.depth)
        self._past = SuffixTree(options.depth)
        self._reply: list[int] = []
        self._continuations: dict[tuple[int, ...], Continuation] = {}  # path below the root → what was drafted after it

    def start(self, history: Sequence[int]) -> None:
        """Remember the reply that ended, and index what is new in the history."""
        self._remember_reply()
        self._index(history)

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        """(F,) for each node up to `width` tokens of the continuation drafted there, the most likely first."""
        if len(self._local) != len(context.history):  # a first round without `start`, or rounds not observed
            self._index(context.history)
        return [self._guesses(tuple(tree.path_tokens(node)), width, context) for node in frontier]

    def riders(self, tree: TokenTree) -> Sequence[Rider]:
        """None: it needs nothing of the target's pass but the reading."""
        return ()

    def observe(self, round: Round) -> None:
        """Index the emitted tokens; the continuations drafted for this round are dropped."""
        self._local.extend(round.emitted)
        self._reply.extend(round.emitted)
        self._continuations.clear()

    def close(self) -> None:
        """Nothing outlives it."""

    def _index(self, history: Sequence[int]) -> None:
        """Make the text's own tree hold exactly this history; only the new part, where it goes on from before."""
        known = len(self._local)
        if list(history[:known]) != self._local.text:
            self._local.clear()
            known = 0
        self._local.extend(history[known:])
        self._continuations.clear()

    def _remember_reply(self) -> None:
        self._past.extend(self._reply)
        self._past.end_text()
        self._reply = []
        while len(self._past) > self._options.remember:
            self._past.forget_oldest()

    def _guesses(self, path: tuple[int, ...], width: int, context: Context) -> list[Guess]:
        continuation = self._continuations.get(path)
        if continuation is None:
            longest = self._options.depth
            continuation = self._draft([*context.history[-longest:], *path][-longest:])
            self._continuations[path] = continuation
        for token, child in continuation.children.items():
            self._continuations.setdefault((*path, token), child)
        best = heapq.nlargest(width, continuation.children.items(), key=lambda item: item[1].chance)
        return [Guess(token, logprob=math.log(child.chance), proposer="suffix") for token, child in best]

    def _draft(self, text: Sequence[int]) -> Continuation:
        """The continuation of the match that should save most tokens."""
        best, most = Continuation(), 0.0
        for tree in (self._local, self._past):
            for limit, place in sorted(self._starts(tree, text), key=_room, reverse=True):
                if limit <= most:
                    break  # no path is worth more than 1, so neither this one nor one with less room can save more
                continuation, saved = self._continue(place, limit)
                if saved > most:
                    best, most = continuation, saved
        return best

    def _starts(self, tree: SuffixTree, text: Sequence[int]) -> Iterator[tuple[int, Place]]:
        """(how many tokens may be drafted, from where) for every match, the longest first.

        Matches that occur equally often go on equally: only the one with the most room is of interest.
        """
        options = self._options
        matches = reversed(tree.matches(text, options.depth - 1))
        for _, group in itertools.groupby(matches, key=lambda match: match[1].followed):
            yield max(
                ((min(options.limit(size), options.depth - size), place) for size, place in group),
                key=lambda start: start[0],
            )

    def _continue(self, place: Place, limit: int) -> tuple[Continuation, float]:
        """The `limit` likeliest continuations of a place, best first, and the sum of their path probabilities."""
        root = Continuation()
        saved, order = 0.0, itertools.count()
        heap: list[tuple[float, int, float, int, Continuation, Place]] = []

        def push(above: Continuation, at: Place, value: float) -> None:
            followed = at.followed
            for token, longer in at.next(least=followed * self._options.min_probability / value):
                chance = longer.count / followed
                heapq.heappush(heap, (-value * chance, next(order), chance, token, above, longer))

        push(root, place, 1.0)
        while heap and limit > 0:
            value, _, chance, token, above, at = heapq.heappop(heap)
            above.children[token] = child = Continuation(chance)
            saved -= value
            limit -= 1
            push(child, at, -value)
        return root, saved
