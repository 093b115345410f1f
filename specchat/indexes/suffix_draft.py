"""The likeliest continuations of a text by what followed its last tokens before, as suffix trees count it."""

from __future__ import annotations

import heapq
import itertools
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from specchat.core.record import record
from specchat.indexes.suffix_tree import Place, SuffixTree

_room = operator.itemgetter(0)


@dataclass(frozen=True)
class DraftLimits:
    """How far continuations go.

    Args:
        by_match: how many tokens a match may draft, by its length, from 0 to the trees' depth.
        probability: paths less likely than this are not drafted.
    """

    by_match: tuple[int, ...]
    probability: float


@record
class SuffixDraft:
    """A drafted continuation: a tree of tokens, the likeliest paths first.

    Args:
        above: for each token which one it follows, counted from 1; 0 is the end of the text.
        tokens: the tokens.
        chances: how likely each is where the one above stands.
    """

    above: list[int]
    tokens: list[int]
    chances: list[float]

    @cached_property
    def after(self) -> list[list[int]]:
        """For the end of the text and each token, the numbers of those that follow it, the likeliest first."""
        following: list[list[int]] = [[] for _ in range(len(self.above) + 1)]
        for number, above in enumerate(self.above, 1):
            following[above].append(number)
        return following


def chance(count: int, followed: int, matched: int) -> float:
    """How likely what followed a match of so many tokens `count` of `followed` times follows it once more.

    At most its share. Two tokens that occurred once go on as before every second or third time, ten nearly always; and
    what went on in two ways mostly goes on in a third (counted in replies of SmolLM2, docs/measurements.md).
    """
    odds = count * count * matched / (3.0 + 6.0 * matched * (followed - count))
    return min(count / followed, odds / (1.0 + odds))


def draft(trees: Sequence[SuffixTree], path: Sequence[int], limits: DraftLimits) -> SuffixDraft:
    """The continuation, by any of the trees, that should save most tokens.

    For every length of match a tree says what followed and how often. The likeliest continuations are collected
    until they are as many as the match deserves or too unlikely; the sum of their path probabilities is how many tokens
    they should save.

    Args:
        trees: of one depth. The text to be continued is the end of the first one's growing text, and `path` after it.
        path: tokens after that text.
        limits: how far.
    """
    depth = trees[0].depth
    text = [*trees[0].text[-depth:], *path]
    best, most = SuffixDraft([], [], []), 0.0
    for tree in trees:
        for room, size, place in sorted(_starts(tree, text, limits), key=_room, reverse=True):
            if room <= most:
                break  # no path is worth more than 1, so neither this one nor one with less room can save more
            continued, saved = _continue(place, size, room, limits.probability)
            if saved > most:
                best, most = continued, saved
    return best


def _starts(tree: SuffixTree, text: Sequence[int], limits: DraftLimits) -> Iterator[tuple[int, int, Place]]:
    """(how many tokens may be drafted, the match's length, from where) for every match, the longest first.

    Matches that occur equally often go on equally: only the one with the most room is of interest.
    """
    matches = reversed(tree.matches(text, tree.depth - 1))
    for _, group in itertools.groupby(matches, key=lambda match: match[1].followed):
        yield max(((limits.by_match[size], size, place) for size, place in group), key=_room)


def _continue(place: Place, size: int, room: int, probability: float) -> tuple[SuffixDraft, float]:
    """The `room` likeliest continuations of a place, best first, and the sum of their path probabilities."""
    found = SuffixDraft([], [], [])
    saved, order = 0.0, itertools.count()
    heap: list[tuple[float, int, float, int, int, int, Place]] = []

    def push(above: int, at: Place, matched: int, value: float) -> None:
        followed = at.followed
        for token, longer in at.next(least=followed * probability / value):
            share, likely = longer.count / followed, chance(longer.count, followed, matched)
            heapq.heappush(heap, (-value * share, next(order), likely, token, above, matched + 1, longer))

    push(0, place, size, 1.0)
    while heap and len(found.tokens) < room:
        value, _, likely, token, above, matched, at = heapq.heappop(heap)
        found.above.append(above)
        found.tokens.append(token)
        found.chances.append(likely)
        saved -= value
        push(len(found.tokens), at, matched, -value)
    return found, saved
