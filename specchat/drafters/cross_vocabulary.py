"""A draft model with tokens of its own guesses level by level; what it says is translated into the target's tokens."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from specchat.core.candidate_penalties import penalised_candidates
from specchat.core.context import Context
from specchat.core.point_rows import PointRows
from specchat.core.request import Rider
from specchat.core.round import Round
from specchat.core.seams import Proposal
from specchat.core.states import StateTap
from specchat.core.tree import ROOT, Guess, TokenTree
from specchat.drafters.likeliest_tokens import likeliest_of
from specchat.drafters.options import CrossVocabularyOptions
from specchat.drafters.parts import Parts
from specchat.drafters.point_guesses import coupled
from specchat.drafters.points_alone import points_alone
from specchat.structures.token_translation import LONGEST_NGRAM, TokenTranslation
from specchat.structures.translated_text import TranslatedText

_CANDIDATES = 16
"""How many of the draft model's likeliest tokens are translated at a node."""


class _Place(NamedTuple):
    """Where a node of the target's tree stands in the draft model's: below `node`, at the end of some draft tokens.

    Args:
        node: of the draft model's tree.
        tokens: the draft tokens below it; its tree has them only once the place is asked about.
        owed: the target's tokens that the draft token still stands for; they follow without a pass.
    """

    node: int
    tokens: tuple[int, ...] = ()
    owed: tuple[int, ...] = ()


_Candidate = tuple[float, tuple[int, ...], tuple[int, ...]]
"""A translated guess: its log-probability, the draft tokens it comes from, and what is owed after it. There are
thousands in a round, so it is a plain tuple."""

_Said = tuple[list[int], list[float], float]
"""The draft model's likeliest tokens after a node, the best first, their logits, and what is to be taken from these to
make log-probabilities of them."""

_logprob_of = operator.itemgetter(0)


class CrossVocabulary:
    """Lets any model draft for any other: texts go over as characters, guesses come back as the target's tokens.

    The draft model keeps the text in tokens of its own and grows a tree of its own. A draft token that the target has
    too is that guess, with its probability; one that the target writes as several is the first of them, and the others
    follow without a pass. Draft tokens that together are one token of the target, an n-gram that the target was seen to
    use, become that guess, with the product of their probabilities, which the first of them then lacks. So the
    probabilities of the guesses at a node never add up to more than 1.

    Guesses are points; above temperature 0 they are those that win with the target's own noise. The chat's penalties
    hold for what a guess is among the target's tokens. With a draft model that has the target's tokens it drafts as
    `draft_model` does.

    Reference: Ramakrishnan et al., OmniDraft: A Cross-vocabulary, Online Adaptive Drafter for On-device Speculative
    Decoding, arXiv:2507.02659. Differs: nothing is trained; one draft token may stand for several of the target's; an
    n-gram is looked for along the draft's likeliest tokens, with a pass more where one may begin; guesses are points,
    so the rule must be one that is right about any tree.
    """

    taps: Sequence[int] = ()
    text_tap: StateTap | None = None
    draw_kinds = staticmethod(points_alone)

    def __init__(self, options: CrossVocabularyOptions, parts: Parts) -> None:
        assert parts.draft_model is not None, "assemble refuses this drafter without a draft model"
        self._model = parts.draft_model
        self._vocab_size = parts.vocab_size
        self._translation = TokenTranslation(parts.resources.differing_tables)
        self._text = TranslatedText(self._translation)
        self._tree: TokenTree | None = None
        self._draft: TokenTree | None = None
        self._root_tokens: list[int] = []  # the text up to the root, as draft tokens
        self._places: dict[tuple[int, ...], _Place] = {}  # path below the root → its place
        self._candidates: dict[tuple[int, ...], dict[int, _Candidate]] = {}  # path → by the target's token
        self._said: dict[int, _Said] = {}  # by node of the draft model's tree

    @property
    def passes(self) -> int:
        """Forward passes of the draft model since it was loaded."""
        return self._model.counters.passes

    def start(self, history: Sequence[int]) -> None:
        """Read the text up to the root, and learn the n-grams that its tokens are."""
        self._forget_tree()
        for token in set(history):
            self._translation.learn(token)
        tokens = self._text.of(history)
        if tokens is not None and len(tokens) <= self._model.context_tokens:
            self._model.prefill(tokens[:-1])

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        """(F,) up to `width` translated guesses; nothing beyond the draft model's context or without its passes."""
        if not context.passes or not frontier:
            return [() for _ in frontier]
        if self._tree is not tree:
            self._begin(tree, context)
        if self._draft is None:
            return [() for _ in frontier]
        paths = [tuple(tree.path_tokens(node)) for node in frontier]
        places = [self._place(path) for path in paths]
        self._read([place.node for place in places if place is not None and not place.owed])
        positions = [context.position(tree, node) for node in frontier]
        best = [
            self._guesses(path, place, position, width, context)
            for path, place, position in zip(paths, places, positions, strict=True)
        ]
        tokens = [[token for _, token in guesses] for guesses in best]
        logprobs = [[logprob for logprob, _ in guesses] for guesses in best]
        return PointRows(tokens, logprobs, None, "cross_vocabulary")

    def riders(self, tree: TokenTree) -> Sequence[Rider]:
        """None: it needs nothing of the target's pass but the reading."""
        return ()

    def observe(self, round: Round) -> None:
        """Learn the n-grams of what was emitted, and keep what the draft model read of it."""
        for token in round.emitted:
            self._translation.learn(token)
        if self._draft is not None:
            tokens, before = self._text.of([*round.history, *round.emitted]) or [], self._root_tokens
            grown = tokens[len(before) :] if tokens[: len(before)] == before else []
            self._model.keep(self._draft.follow(grown))
        self._forget_tree()

    def close(self) -> None:
        """Forget the tree; the model is the pair's."""
        self._forget_tree()

    def _begin(self, tree: TokenTree, context: Context) -> None:
        self._forget_tree()
        self._tree = tree
        tokens = self._text.of(context.history)
        if tokens is not None and len(tokens) <= self._model.context_tokens:
            self._model.prefill(tokens[:-1])
            self._draft, self._root_tokens = TokenTree(tokens[-1], self._model.vocab_size), tokens
            self._places[()] = _Place(ROOT)

    def _place(self, path: tuple[int, ...]) -> _Place | None:
        """Where a path of the target's tokens ends in the draft model's tree; what others proposed is encoded anew."""
        if path not in self._places:
            above, guessed = self._places.get(path[:-1]), self._candidates.get(path[:-1], {}).get(path[-1])
            if above is not None and guessed is not None:
                _, tokens, owed = guessed
                place = _Place(above.node, (*above.tokens, *tokens), owed)
            elif (spelt := self._translation.draft_tokens(path)) is not None:
                place = _Place(ROOT, spelt)
            else:
                return None
            self._places[path] = place if place.owed else _Place(self._grown(place.node, place.tokens))
        return self._places[path]

    def _grown(self, node: int, tokens: Sequence[int]) -> int:
        """The node that these tokens below `node` lead to, put there if need be."""
        assert self._draft is not None, "a tree was begun"
        for token in tokens:
            node = self._draft.add(node, Guess(token))
        return node

    def _read(self, nodes: Sequence[int]) -> None:
        """Read these nodes, and what n-grams may begin after them: one pass more for each of their further tokens."""
        ends: list[tuple[int, tuple[int, ...]]] = [(node, ()) for node in dict.fromkeys(nodes)]
        for _ in range(LONGEST_NGRAM):
            self._read_nodes([node for node, _ in ends])
            following = [(node, (*ngram, self._best(node)[0])) for node, ngram in ends if node in self._said]
            ends = [
                (self._grown(node, ngram[-1:]), ngram)
                for node, ngram in following
                if self._translation.begins_ngram(ngram)
            ]
            if not ends:
                return

    def _read_nodes(self, nodes: Sequence[int]) -> None:
        """One pass over nodes and whatever lies unread above them, as far as the draft model's context goes."""
        assert self._draft is not None, "a tree was begun"
        draft, room = self._draft, self._model.context_tokens - len(self._root_tokens)
        if unread := draft.above([node for node in nodes if draft.depths[node] <= room], self._said):
            reading = self._model.read(draft, unread)
            said = likeliest_of(reading, _CANDIDATES, self._model.vocab_size)
            each = zip(said.tokens.tolist(), said.values.tolist(), said.totals.tolist(), strict=True)
            self._said.update(zip(unread, each, strict=True))

    def _guesses(
        self, path: tuple[int, ...], place: _Place | None, position: int, width: int, context: Context
    ) -> list[tuple[float, int]]:
        """Log-probability and token of each guess below a node, the best first."""
        if place is None or (not place.owed and place.node not in self._said):
            return []
        sampling = context.sampling
        ordered = sampling.greedy and not sampling.penalised  # then the likeliest stay the likeliest
        candidates = self._translated(place, width + 2 if ordered else _CANDIDATES)
        self._candidates[path] = candidates
        best = [(candidate[0], token) for token, candidate in candidates.items()]
        if not ordered and best:
            best = self._in_chat(path, place, position, best, context)
        best.sort(key=_logprob_of, reverse=True)
        return best[:width]

    def _in_chat(
        self, path: tuple[int, ...], place: _Place, position: int, best: list[tuple[float, int]], context: Context
    ) -> list[tuple[float, int]]:
        """The same guesses as the chat's penalties and the target's noise order them, with their log-probabilities."""
        tokens, logprobs = np.array([[token for _, token in best]]), np.array([[logprob for logprob, _ in best]])
        if context.sampling.penalised and not place.owed:
            totals = np.array([self._said[place.node][2]])
            about = context.sampling, context.counts, [path]
            tokens, logprobs = penalised_candidates(tokens, logprobs, totals, *about)
        if not context.sampling.greedy:
            tokens, logprobs = coupled(tokens, logprobs, [position], context)
        return list(zip(logprobs[0].tolist(), tokens[0].tolist(), strict=True))

    def _translated(self, place: _Place, count: int) -> dict[int, _Candidate]:
        """By the target's token: what so many of the likeliest tokens at a place stand for, and the n-gram there."""
        if place.owed:
            return {place.owed[0]: (0.0, (), place.owed[1:])}
        found: dict[int, _Candidate] = {}
        ngram, merged, merged_logprob = self._merged(place.node)
        own_tokens, vocab_size = self._translation.own_tokens, self._vocab_size
        tokens, values, total = self._said[place.node]
        for token, value in zip(tokens[:count], values, strict=False):
            logprob = value - total
            if merged is not None and token == tokens[0]:
                logprob += math.log(max(1e-9, -math.expm1(merged_logprob - logprob)))
            own = own_tokens(token)
            if own and own[0] < vocab_size and logprob > -math.inf:
                candidate: _Candidate = logprob, (token,), own[1:]
                found[own[0]] = _joined(found[own[0]], candidate) if own[0] in found else candidate
        if merged is not None:
            candidate = merged_logprob, ngram, ()
            found[merged] = _joined(found[merged], candidate) if merged in found else candidate
        return found

    def _merged(self, node: int) -> tuple[tuple[int, ...], int | None, float]:
        """The longest n-gram along the likeliest tokens after a node, the target's token, and its log-probability."""
        assert self._draft is not None, "a tree was begun"
        ngram: tuple[int, ...] = ()
        longest: tuple[tuple[int, ...], int | None, float] = ((), None, -math.inf)
        logprob, at = 0.0, node
        while at in self._said:
            best, likely = self._best(at)
            ngram, logprob = (*ngram, best), logprob + likely
            if (token := self._translation.merged(ngram)) is not None:
                longest = (ngram, token, logprob)
            child = self._draft.child(at, best)
            if child is None or not self._translation.begins_ngram(ngram):
                break
            at = child
        return longest

    def _best(self, node: int) -> tuple[int, float]:
        """The likeliest token after a node of the draft model's tree, and its log-probability."""
        tokens, values, total = self._said[node]
        return tokens[0], values[0] - total

    def _forget_tree(self) -> None:
        self._tree, self._draft = None, None
        self._places, self._candidates, self._said = {}, {}, {}


def _joined(one: _Candidate, other: _Candidate) -> _Candidate:
    """Of two guesses of one token the likelier one says how it goes on; their probabilities add up."""
    _, tokens, owed = max(one, other, key=_logprob_of)
    return float(np.logaddexp(one[0], other[0])), tokens, owed
