"""A draft model with tokens of its own guesses level by level; what it says is translated into the target's tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch

from specchat.core.compiled_guessing import CompiledNetwork
from specchat.core.context import Context
from specchat.core.drafting_networks import LearningDraft
from specchat.core.request import DEFAULT_REQUEST
from specchat.core.round import Round
from specchat.core.seams import Proposal
from specchat.core.tree import ROOT, TokenTree, point
from specchat.drafters.draft_model import LearningDrafter
from specchat.drafters.options import CrossVocabularyOptions
from specchat.drafters.parts import Parts
from specchat.drafters.point_guesses import (
    Floats,
    Likeliest,
    Scores,
    Tokens,
    coupled,
    for_frontier,
    likeliest_of,
    named_by,
    penalised_candidates,
    points_of,
)
from specchat.drafters.stop_head import StopHead
from specchat.indexes.called_network import Named, grow_rows
from specchat.indexes.token_translation import LONGEST_NGRAM, TokenTranslation, TranslatedNetwork, TranslatedText


class Merged(NamedTuple):
    """Draft tokens that together are one token of the target, and their log-probability."""

    ngram: tuple[int, ...]
    token: int
    logprob: float


class TranslatedGuesses(NamedTuple):
    """The guesses after R nodes of the draft model's tree, before equal ones are joined.

    Args:
        named: (R, C) the draft tokens.
        own: (R, C + 1) the target's tokens that they begin with, and last what an n-gram is; −1 where there is none.
        values: (R, C + 1) their logits; −inf where there is none.
        logsumexp: (R,) what is to be taken from logits to make log-probabilities of them.
        merged: row → that n-gram.
    """

    named: Tokens
    own: Tokens
    values: Floats
    logsumexp: Floats
    merged: Mapping[int, Merged]

    @classmethod
    def of(cls, said: Likeliest, named: Tokens, own: Tokens, merged: Mapping[int, Merged]) -> TranslatedGuesses:
        """The draft tokens that are named, as the target's; the first of an n-gram lacks what the n-gram has."""
        rows, count = named.shape
        every, values = np.empty((rows, count + 1), dtype=np.int32), np.empty((rows, count + 1), dtype=np.float32)
        every[:, :-1], every[:, -1] = own, -1
        values[:, :-1], values[:, -1] = said.values[:, :count], -np.inf
        for row, (_, token, logprob) in merged.items():
            total = float(said.logsumexp[row])
            left = math.log(max(1e-9, -math.expm1(logprob - (float(values[row, 0]) - total))))
            values[row, 0] += left
            every[row, -1], values[row, -1] = token, logprob + total
        values[every < 0] = -np.inf
        return cls(named, every, values, said.logsumexp, merged)

    def source(self, row: int, token: int) -> tuple[int, ...]:
        """The draft tokens that say how this guess goes on; none where it was not guessed."""
        own = self.own[row].tolist()
        match own.count(token):
            case 0:
                return ()
            case 1:
                column = own.index(token)
            case _:
                column, _ = self._together(row, [column for column, each in enumerate(own) if each == token])
        return self.merged[row].ngram if column == self.named.shape[1] else (int(self.named[row, column]),)

    def joined(self) -> Likeliest:
        """(R, C + 1) different tokens of the target, the likeliest first; −1 behind the last."""
        own, values = self.own, self.values
        ordered = np.sort(own, axis=1)
        equal = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
        if equal.any():
            values = values.copy()
            for row in np.flatnonzero(equal.any(axis=1)).tolist():
                self._join(row, values[row])
        if (values[:, 1:] > values[:, :-1]).any():
            order = np.argsort(-values, axis=1, kind="stable")
            order += np.arange(0, order.size, order.shape[1])[:, None]
            own, values = own.take(order), values.take(order)
        return Likeliest(np.where(values > -np.inf, own, -1), values, self.logsumexp, logits=True)

    def _join(self, row: int, values: Floats) -> None:
        """Let the first of equal guesses have what all of them have."""
        columns: dict[int, list[int]] = {}
        for column, token in enumerate(self.own[row].tolist()):
            columns.setdefault(token, []).append(column)
        for token, equal in columns.items():
            if token >= 0 and len(equal) > 1:
                values[equal] = -np.inf
                values[equal[0]] = self._together(row, equal)[1] + self.logsumexp[row]

    def _together(self, row: int, columns: Sequence[int]) -> tuple[int, float]:
        """Of several guesses of one token the likeliest says how it goes on; their probabilities add up."""
        logprobs = (self.values[row, list(columns)].astype(np.float64) - float(self.logsumexp[row])).tolist()
        best, total = columns[0], logprobs[0]
        for column, logprob in zip(columns[1:], logprobs[1:], strict=True):
            best, total = column if logprob > total else best, float(np.logaddexp(total, logprob))
        return best, total


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


class CrossVocabulary(LearningDrafter):
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
    Decoding, arXiv:2507.02659: its online distillation is that of `LearningDraft`, by the divergence where a token of
    the target is one of the draft's and by the likelihood of those that an n-gram is made of; its head that ends a
    branch is `StopHead`. Differs: an adapter of the last state learns, not the draft itself; one draft token may stand
    for several of the target's; an n-gram is looked for along the draft's likeliest tokens, with a pass more where one
    may begin; guesses are points, so the rule must be one that is right about any tree.
    """

    def __init__(self, options: CrossVocabularyOptions, parts: Parts) -> None:
        super().__init__(options, parts)
        self._translation = TokenTranslation(parts.resources.differing_tables)
        self._text = TranslatedText(self._translation)
        self._draft: TokenTree | None = None
        self._root_tokens: list[int] = []  # the text that its tree goes on from, as draft tokens
        self._places: dict[int, _Place] = {}  # by node of the target's tree
        self._translated: dict[int, tuple[TranslatedGuesses, int]] = {}  # by the same: its guesses, and its row there
        self._network: TranslatedNetwork | None = None  # what compiled code reads with

    def start(self, history: Sequence[int]) -> None:
        """Read the text up to the root, and learn the n-grams that its tokens are."""
        self._forget_tree()
        if self._learning is not None:
            self._learning.start(history)
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
        if self._stop is not None:
            going = [node for node in frontier if self._stop.goes_on(tree, node)]
            if len(going) < len(frontier):
                return for_frontier(frontier, going, self.propose(tree, going, width, context))
        said = self._say(tree, frontier, width if context.sampling.by_logits else _CANDIDATES)
        tokens, logprobs = said.tokens, said.values.astype(np.float64) - said.logsumexp.astype(np.float64)[:, None]
        if not context.sampling.by_logits:
            tokens, logprobs = self._in_chat(tree, frontier, tokens, logprobs, said.logsumexp, context)
        if self._stop is not None:
            self._judge_later(self._stop, frontier, tokens, said)
        return points_of(tokens, logprobs, width, self.proposer)

    def _judge_later(self, stop: StopHead, nodes: Sequence[int], tokens: Tokens, said: Likeliest) -> None:
        """Let the stopping head look at nodes that were read, and at the first guess after each."""
        rows = [row for row, node in enumerate(nodes) if node in self._translated and tokens[row, 0] >= 0]
        places = {row: place.node for row in rows if (place := self._places[nodes[row]]) and place.node in self._states}
        if places:
            states = torch.stack([self._states[node] for node in places.values()])
            likely = said.values[:, 0].astype(np.float64) - said.logsumexp
            stop.read(
                [nodes[row] for row in places], states, [(int(tokens[row, 0]), float(likely[row])) for row in places]
            )

    def compiled(self, context: Context, tokens: Sequence[int], rows: int) -> CompiledNetwork | None:
        """The source of guesses that compiled code asks; it has none where `propose` would have none."""
        if self._stop is not None:
            return None
        if context.passes:
            self._begin(TokenTree(context.root, self._vocab_size), context)
        if not context.passes or self._draft is None:
            return CompiledNetwork()
        if self._network is None:
            self._network = TranslatedNetwork(self._named, self._translation, self._model.vocab_size, self._vocab_size)
        return self._network.begin(self._root_tokens[-1], self._model.context_tokens - len(self._root_tokens))

    def observe(self, round: Round) -> None:
        """Learn the n-grams of what was emitted, and keep what the draft model read of it.

        Of a tree that was drafted ahead, behind the end of this round's, the round judged nothing.
        """
        for token in round.emitted:
            self._translation.learn(token)
        judged = self._tree is not None and self._begun == round.start
        if self._stop is not None and self._tree is not None and judged:
            self._stop.judge([ROOT, *self._tree.follow(round.emitted)], round.emitted)
        if self._draft is not None:
            tokens, before = self._text.of([*round.history, *round.emitted]) or [], self._root_tokens
            grown = tokens[len(before) :] if tokens[: len(before)] == before else []
            path = self._draft.follow(grown)
            if self._learning is not None and self._learning.wanted and judged:
                self._note(self._learning, [ROOT, *path], grown, round)
            self._model.keep(path)
        self._forget_tree()

    def _note(self, learning: LearningDraft, path: Sequence[int], grown: Sequence[int], round: Round) -> None:
        """What the target says after nodes on the accepted path, in draft tokens, and the n-grams that it went on with.

        Args:
            path: the nodes of the draft model's tree on the accepted path, the root first.
            grown: the draft tokens of what was emitted.
        """
        likeliest, log_p = learning.law(round.reading, (ROOT, *round.verdict.path))
        direct = torch.tensor([[self._direct(token) for token in row] for row in likeliest.tolist()])
        nothing = torch.full((1, likeliest.shape[1]), -1), torch.full((1, likeliest.shape[1]), -torch.inf)
        ends = [self._translation.draft_tokens(round.emitted[:count]) for count in range(len(round.emitted) + 1)]
        for row, (begin, end) in enumerate(pairwise(ends[: len(likeliest) + 1])):
            if begin is None or end is None or list(end) != list(grown[: len(end)]) or end[: len(begin)] != begin:
                continue
            piece, first = end[len(begin) :], len(begin)
            for place, token in enumerate(piece, first):
                if place >= len(path) or path[place] not in self._states:
                    continue
                states = [self._states[path[place]]]
                if place == first:
                    learning.add(states, direct[row : row + 1], log_p[row : row + 1], [token], False)
                if len(piece) > 1:
                    law = (
                        nothing[0].index_fill(1, torch.tensor([0]), token),
                        nothing[1].index_fill(1, torch.tensor([0]), 0.0),
                    )
                    learning.add(states, *law, [token], True)

    def _direct(self, token: int) -> int:
        """The one draft token that spells a token of the target; −1 where there is none."""
        spelt = self._translation.draft_tokens((token,)) or ()
        return spelt[0] if len(spelt) == 1 else -1

    def _begin(self, tree: TokenTree, context: Context) -> None:
        self._forget_tree()
        self._tree, self._begun = tree, len(context.history)
        tokens = self._text.of(context.history)
        if tokens is not None and len(tokens) <= self._model.context_tokens:
            self._model.prefill(tokens[:-1])
            self._draft, self._root_tokens = TokenTree(tokens[-1], self._model.vocab_size), tokens
            self._places[ROOT] = _Place(ROOT)

    def _named(self, behind: Sequence[int], tokens: Sequence[int], _: int) -> Named:
        """What the draft model holds likely after tokens behind rows of its tree, which are read now."""
        assert self._draft is not None, "a tree was begun"
        reading = self._said_by_model(self._draft, grow_rows(self._draft, behind, tokens), DEFAULT_REQUEST)
        return named_by(reading, _CANDIDATES, self._model.vocab_size)

    def _say(self, tree: TokenTree, nodes: Sequence[int], width: int) -> Likeliest:
        """(F, C) translated guesses after these nodes, of the `width` likeliest draft tokens and some more."""
        places = [self._place(tree, node) for node in nodes]
        self._read([place.node for place in places if place is not None and not place.owed])
        said, count = self._said, min(width + 2, _CANDIDATES)
        read = {row: place.node for row, place in enumerate(places) if place and not place.owed and place.node in said}
        size = (len(nodes), count + 1)
        tokens, values = np.full(size, -1, dtype=np.int32), np.full(size, -np.inf, dtype=np.float32)
        logsumexp = np.zeros(len(nodes), dtype=np.float32)
        for row, place in enumerate(places):
            if place is not None and place.owed:
                tokens[row, 0], values[row, 0] = place.owed[0], 0.0
        if read:
            rows = list(read)
            some = self._translated_after([nodes[row] for row in rows], list(read.values()), count)
            width = some.tokens.shape[1]
            tokens[rows, :width], values[rows, :width], logsumexp[rows] = some.tokens, some.values, some.logsumexp
        return Likeliest(tokens, values, logsumexp, logits=True)

    def _translated_after(self, nodes: Sequence[int], read: Sequence[int], count: int) -> Likeliest:
        """The same for nodes that stand at these nodes of the draft model's tree."""
        said = self._said.rows(read)
        named = said.tokens[:, :count]
        beginning = [row for row, begins in enumerate(self._translation.begin_ngrams(named[:, 0]).tolist()) if begins]
        if beginning:
            self._read_on([read[row] for row in beginning])
        merged = {row: found for row in beginning if (found := self._merged(read[row])) is not None}
        own = self._translation.first_own_tokens(named)
        guesses = TranslatedGuesses.of(said, named, np.where(own < self._vocab_size, own, -1), merged)
        self._translated.update((node, (guesses, row)) for row, node in enumerate(nodes))
        return guesses.joined()

    def _place(self, tree: TokenTree, node: int) -> _Place | None:
        """Where a node of the target's tree stands in the draft model's; what others proposed is encoded anew."""
        if node in self._places:
            return self._places[node]
        parent = tree.parents[node]
        above, guessed = self._places.get(parent), self._guessed(parent, tree.tokens[node])
        if above is not None and guessed is not None:
            tokens, owed = (*above.tokens, *guessed[0]), guessed[1]
            place = _Place(above.node, tokens, owed) if owed else _Place(self._grown(above.node, tokens))
        elif (spelt := self._translation.draft_tokens(tree.path_tokens(node))) is not None:
            place = _Place(self._grown(ROOT, spelt))
        else:
            return None
        self._places[node] = place
        return place

    def _grown(self, node: int, tokens: Sequence[int]) -> int:
        """The node that these tokens below `node` lead to, put there if need be."""
        assert self._draft is not None, "a tree was begun"
        for token in tokens:
            node = self._draft.add(node, point(token, None, ""))
        return node

    def _guessed(self, node: int, token: int) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """The draft tokens that a guess below this node comes from, and what is owed after it; None for others."""
        place = self._places.get(node)
        if place is not None and place.owed:
            return ((), place.owed[1:]) if place.owed[0] == token else None
        if node not in self._translated:
            return None
        translated, row = self._translated[node]
        source = translated.source(row, token)
        if len(source) != 1:
            return (source, ()) if source else None
        return source, self._translation.own_tokens(source[0])[1:]

    def _read_on(self, nodes: Sequence[int]) -> None:
        """Read on where n-grams may begin: one pass more for each of their further tokens."""
        ends: list[tuple[int, tuple[int, ...]]] = [(node, ()) for node in dict.fromkeys(nodes)]
        for _ in range(LONGEST_NGRAM - 1):
            following = [(node, (*ngram, self._said.best(node)[0])) for node, ngram in ends if node in self._said]
            ends = [
                (self._grown(node, ngram[-1:]), ngram)
                for node, ngram in following
                if self._translation.begins_ngram(ngram)
            ]
            if not ends:
                return
            self._read([node for node, _ in ends])

    def _read(self, nodes: Sequence[int]) -> None:
        """One pass over nodes and whatever lies unread above them, as far as the draft model's context goes."""
        assert self._draft is not None, "a tree was begun"
        draft, room = self._draft, self._model.context_tokens - len(self._root_tokens)
        if unread := draft.above([node for node in nodes if draft.depths[node] <= room], self._said):
            reading = self._said_by_model(draft, unread, DEFAULT_REQUEST)
            if self._stop is not None:
                self._states.update(zip(unread, reading.taps[self._last], strict=True))
            likeliest = likeliest_of(reading, _CANDIDATES, self._model.vocab_size)
            self._said.add(unread, lambda: likeliest, None)  # without the reading, whose logits others can take

    def _in_chat(
        self,
        tree: TokenTree,
        nodes: Sequence[int],
        tokens: Tokens,
        logprobs: Scores,
        logsumexp: Floats,
        context: Context,
    ) -> tuple[Tokens, Scores]:
        """The same guesses as the chat's penalties and the target's noise order them; what is owed stays certain."""
        rows = [row for row, node in enumerate(nodes) if node in self._translated and logprobs[row, 0] > -np.inf]
        if rows:
            some, each = np.maximum(tokens[rows], 0), logprobs[rows]
            if context.sampling.shifts_logits:
                paths = [tree.path_tokens(nodes[row]) for row in rows]
                about = logsumexp[rows].astype(np.float64), context.sampling, context.counts, paths
                some, each = penalised_candidates(some, each, *about)
            if not context.sampling.greedy:
                some, each = coupled(some, each, [context.position(tree, nodes[row]) for row in rows], context)
            tokens[rows], logprobs[rows] = some, each
        return tokens, logprobs

    def _merged(self, node: int) -> Merged | None:
        """The longest n-gram along the likeliest tokens after a node."""
        assert self._draft is not None, "a tree was begun"
        ngram: tuple[int, ...] = ()
        longest, logprob, at = None, 0.0, node
        while at in self._said:
            best, likely = self._said.best(at)
            ngram, logprob = (*ngram, best), logprob + likely
            if (token := self._translation.merged(ngram)) is not None:
                longest = Merged(ngram, token, logprob)
            child = self._draft.child(at, best) if self._translation.begins_ngram(ngram) else None
            if child is None:
                break
            at = child
        return longest

    def _forget_tree(self) -> None:
        super()._forget_tree()
        self._draft, self._places, self._translated = None, {}, {}
