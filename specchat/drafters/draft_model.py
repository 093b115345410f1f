"""A smaller model with the target's tokens guesses level by level, with a cache of its own."""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specchat.core.compiled_guessing import CompiledNetwork
from specchat.core.context import Context
from specchat.core.device_copy import to_device
from specchat.core.drafting_networks import GuessesSome, LearningDraft, LeavesEarly
from specchat.core.noise import Noise, Stream
from specchat.core.reading import Reading
from specchat.core.request import DEFAULT_REQUEST, EVERYTHING, FIRST, HeadNeeds, HeadOfSome, PassRequest
from specchat.core.round import Round
from specchat.core.seams import Model, Proposal
from specchat.core.tree import ROOT, DrawKind, Guess, TokenTree
from specchat.drafters.compiled_search import CompiledDrafter
from specchat.drafters.options import CrossVocabularyOptions, DraftModelOptions, probabilities
from specchat.drafters.parts import Parts
from specchat.drafters.point_guesses import LikeliestByNode, for_frontier, likeliest_of, named_by, points_below
from specchat.drafters.stop_head import StopHead, joined_state, split_state
from specchat.indexes.called_network import CalledNetwork, Named, grow_rows

_MOST = 16384
"""Tokens that are remembered: more than a user's texts have of them that are not frequent anyway."""

_FORMAT = np.dtype("<u4")

_LEAST_TRIMMED, _MOST_KEPT = 32768, 65536
"""Larger vocabularies lose half of their tokens, and keep so many at most. Of SmolLM2's 49,152 the lower half with the
text's own are 98 to 99 of 100 tokens of English prose and of Python."""

_SINKS = 16
"""The first tokens, to which attention goes that has nowhere else to go."""

_CANDIDATES = 64
"""How many of its likeliest tokens are considered as points."""


class LearningDrafter(CompiledDrafter):
    """A drafter with a draft model that may learn from replies, and perhaps a head that ends branches early."""

    def __init__(self, options: DraftModelOptions | CrossVocabularyOptions, parts: Parts) -> None:
        """Nothing read yet. As a part of another drafter it does not learn."""
        assert parts.draft_model is not None, "assemble refuses this drafter without a draft model"
        super().__init__(parts.proposer)
        self._model: Model = parts.draft_model
        self._vocab_size = parts.vocab_size
        self._tree: TokenTree | None = None
        self._begun = 0  # tokens of the text that its tree goes on from
        width, self._unused_head = self._model.hidden_size, b""
        self._stop = StopHead(width, options.stop, parts.draft_sha256) if options.stop < 1.0 else None
        own = parts.name in ("draft_model", "cross_vocabulary")
        self._learning = parts.learning(options.divergence, options.topics) if own else None
        self._states: dict[int, Tensor] = {}  # by node of the draft model's tree, where they are looked at
        self._said = LikeliestByNode[Any]()  # by the same
        self._last = self._model.layers - 1

    @property
    def needs(self) -> HeadNeeds:
        """The target's laws, where it learns from replies."""
        return EVERYTHING if self._learning is not None and self._learning.wanted else FIRST

    @property
    def passes(self) -> int:
        return self._model.counters.passes

    def close(self) -> None:
        self._forget_tree()

    def save_state(self) -> bytes:
        return self._unused_head if self._stop is None else self._stop.to_bytes()

    def restore_state(self, state: bytes) -> None:
        if self._stop is None:
            self._unused_head = state
        else:
            self._stop.restore(state)

    def _said_by_model(self, tree: TokenTree, nodes: Sequence[int], request: PassRequest) -> Reading:
        """What it says after these nodes, with what it has learnt; the states are noted where it learns."""
        if self._stop is not None:
            request = dataclasses.replace(request, taps=frozenset({self._last}))
        learning = self._learning
        if learning is None or not learning.active:
            return self._model.read(tree, nodes, request)
        reading = self._model.read(tree, nodes, learning.request(request))
        if learning.wanted:
            self._states.update(zip(nodes, learning.states, strict=True))
        return reading

    def _forget_tree(self) -> None:
        self._tree = None
        self._said.clear()
        self._states.clear()
        if self._stop is not None:
            self._stop.forget_tree()


class DraftModel(LearningDrafter):
    """Reads each frontier once and proposes what the draft model holds likely after it.

    Where the acceptance rule can use the probabilities of draws, children are drawn from q with noise of the
    drafter's own. Otherwise they are points: the most likely tokens, or, above temperature 0, the tokens that win
    when the *target's* own noise at that position is added to log q ("coupled"). Target and draft then lean the
    same way for the same reason and agree far more often, and the text cannot depend on it, because under `follow`
    it does not depend on the tree at all.

    Of a large vocabulary only the tokens in use have rows of the head (`FrequentHead`); q is then a law of these.
    With `stop` below 1 a branch ends where a head that learns from the rounds expects a refusal (`StopHead`). Of a
    model that was trained at several depths, sure tokens leave at the first ones (`leave_at`, `EarlyExits`): q is the
    law of the depth that a token left at.

    Reference: Leviathan et al., Fast Inference from Transformers via Speculative Decoding, arXiv:2211.17192;
    Daliri, Musco, Suresh, Drafter-Invariant Speculative Decoding, arXiv:2408.07978; Kavehzadeh et al., S2D,
    arXiv:2407.01955 (`leave_at`).
    """

    @classmethod
    def draw_kinds(cls, options: DraftModelOptions, members: Sequence[Collection[DrawKind]]) -> frozenset[DrawKind]:
        """All kinds; forced to its likeliest tokens or to the target's noise, points alone."""
        return frozenset(DrawKind) if options.drawing == "auto" else frozenset({DrawKind.POINT})

    def __init__(
        self,
        options: DraftModelOptions,
        parts: Parts,
        reads: Callable[[Sequence[int]], Sequence[int]] | None = None,
    ) -> None:
        """Nothing read yet; `reads` says what of a text the draft model gets to see, if not the option `window`."""
        super().__init__(options, parts)
        sure = probabilities(options.leave_at)
        if isinstance(self._model, LeavesEarly) and min(sure) < 1.0:
            self._model = self._model.leaving_early(sure)
        self._noise = parts.noise
        self._reads = reads or partial(first_and_last, window=options.window)
        self._drawing = options.drawing
        self._kinds = self.draw_kinds(options, ())
        self._head = FrequentHead(self._model, options.trim, parts.vocab_size)
        self._room = 0  # depth of the last nodes in its context
        self._called = CalledNetwork(self._named)

    def start(self, history: Sequence[int]) -> None:
        """Read the text up to the root, so that the first round does not pay for the prompt."""
        self._forget_tree()
        self._head.start(history)
        if self._learning is not None:
            self._learning.start(history)
        text = self._reads(history[:-1])
        if len(text) < self._model.context_tokens:
            self._model.prefill(text)

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        """Nothing for nodes beyond the end of its context, and nothing at all where passes are not allowed."""
        nodes = self._readable(tree, frontier, context) if context.passes else []
        return for_frontier(frontier, nodes, self._guesses(tree, nodes, width, context) if nodes else ())

    def compiled(self, context: Context, tokens: Sequence[int], rows: int) -> CompiledNetwork | None:
        """The source of guesses that compiled code asks for a tree of points, if its context has room for any."""
        without_noise = self._drawing == "top" and not context.sampling.greedy  # which compiled code always adds
        if draws(context, self._kinds) or without_noise or self._stop is not None:
            return None
        if not context.passes:
            return CompiledNetwork()
        return self._called.network if self._begin(TokenTree(context.root, self._vocab_size), context) >= rows else None

    def observe(self, round: Round) -> None:
        """Keep the accepted path, found by tokens: it may leave this drafter's tree or end in unread nodes.

        A tree that was drafted ahead, behind the end of this round's, stays: the next text may go on along it.
        """
        self._head.learn(round.emitted)
        if self._tree is not None and self._begun == round.start:
            path = self._tree.follow(round.emitted)
            if self._stop is not None:
                self._stop.judge([ROOT, *path], round.emitted)
            if self._learning is not None and self._states:
                self._note(self._learning, [ROOT, *path], round)
            self._model.keep(path)
            self._forget_tree()

    def _note(self, learning: LearningDraft, path: Sequence[int], round: Round) -> None:
        """What the target says after the nodes on the accepted path that were read, the last one's refusal included."""
        places = zip(path, (ROOT, *round.verdict.path), round.emitted, strict=False)
        known = [(self._states[own], node, token) for own, node, token in places if own in self._states]
        if known:
            states, nodes, wrote = zip(*known, strict=True)
            learning.add(states, *learning.law(round.reading, nodes), wrote, False)

    def sureness(self, tree: TokenTree, node: int) -> float | None:
        """The probability of the token it holds likeliest after a node; None where it has not read the node."""
        if self._tree is not tree or node not in self._said:
            return None
        return math.exp(self._said.best(node)[1])

    def save_state(self) -> bytes:
        """How often the target used each token, and the stopping head."""
        return joined_state(super().save_state(), self._head.save_state())

    def restore_state(self, state: bytes) -> None:
        head, rest = split_state(state)
        self._head.restore_state(rest)
        super().restore_state(head)

    def _guesses(self, tree: TokenTree, nodes: Sequence[int], width: int, context: Context) -> Proposal:
        self._read(tree, nodes, on_host=draws(context, self._kinds) or context.wants_q)
        if draws(context, self._kinds):
            noise = self._noise(context.noise)
            return self._first_noted(
                nodes,
                [drawn_below(tree, node, width, context, self._logits(node), noise, self.proposer) for node in nodes],
            )
        noisy = self._drawing != "top" and not context.sampling.greedy  # at temperature 0 noise has no effect
        points = points_below(
            self._said, tree, nodes, width, context, proposer=self.proposer, noisy=noisy, logits=self._logits
        )
        return self._first_noted(nodes, points)

    def _first_noted(self, nodes: Sequence[int], guesses: Proposal) -> Proposal:
        """These guesses; the stopping head is told the first after each node."""
        if self._stop is not None:
            for node, some in zip(nodes, guesses, strict=True):
                if some:
                    self._stop.guessed(node, some[0].token)
        return guesses

    def _readable(self, tree: TokenTree, frontier: Sequence[int], context: Context) -> Sequence[int]:
        """The nodes that its context has room for; a tree that it did not know begins."""
        if self._tree is not tree and self._begin(tree, context) < 0:
            return ()
        nodes = [node for node in frontier if tree.depths[node] <= self._room]
        return nodes if self._stop is None else [node for node in nodes if self._stop.goes_on(tree, node)]

    def _begin(self, tree: TokenTree, context: Context) -> int:
        """Begin a tree; the depth of the last nodes in its context, negative where not even the root is."""
        if self._tree is not None:
            # It was drafted ahead, or for nothing: what this text has of it need not be read.
            self._model.keep(self._tree.follow(context.history[self._begun :]))
        self._forget_tree()
        text = self._reads(context.history[:-1])
        self._begun = len(context.history)
        self._room = self._model.context_tokens - len(text) - 1
        if self._room >= 0:
            self._model.prefill(text)
            self._tree = tree
        return self._room

    def _named(self, behind: Sequence[int], tokens: Sequence[int], _: int) -> Named:
        """What it holds likely after tokens behind rows of its tree, which are read now."""
        tree = self._tree
        assert tree is not None, "a tree was begun"
        reading = self._said_by_model(tree, grow_rows(tree, behind, tokens), self._head.request)
        return named_by(reading, _CANDIDATES, self._vocab_size)

    def _read(self, tree: TokenTree, frontier: Sequence[int], on_host: bool) -> None:
        """Read the frontier and whatever lies unread above it (nodes that another drafter proposed).

        Args:
            on_host: whether whole laws will be looked at, for which all logits come to the host.
        """
        if unread := tree.above(frontier, self._said):
            reading = self._said_by_model(tree, unread, self._head.request)
            reading = reading.on_host if on_host else reading
            self._said.add(unread, partial(likeliest_of, reading, _CANDIDATES, self._vocab_size), reading)
            if self._stop is not None:
                self._stop.read(unread, reading.taps[self._last], [self._said.best(node) for node in unread])

    def _logits(self, node: int) -> Tensor:
        """(V,) of a node that was read."""
        reading: Reading = self._said.source(node)[0]
        logits = reading.after(node)
        if reading.said.tokens is None:
            return logits[: self._vocab_size]
        return over_vocabulary(reading.said.tokens, logits, self._vocab_size)


def draws(context: Context, kinds: Collection[DrawKind]) -> bool:
    """Whether the rule wants draws of one of these kinds, with their laws; at temperature 0 they would be points."""
    return context.wanted in kinds and context.wanted is not DrawKind.POINT and not context.sampling.greedy


def drawn_below(
    tree: TokenTree, node: int, width: int, context: Context, logits: Tensor, noise: Noise, proposer: str
) -> list[Guess]:
    """Draws from the law of (V,) logits after a node, of the kind the rule wants, with a drafter's own noise.

    The law is made as the target's is: penalties, temperature, truncation. Without replacement there are as many draws
    at most as tokens have a probability.
    """
    law = context.law_after(tree, node, logits)
    q = law.dense(context.vocab_size)
    position, salt = context.position(tree, node), (context.round, node)
    if context.wanted is DrawKind.WOR:
        tokens = law.best(width, noise, Stream.DRAFT, position, salt).tolist()
    else:
        tokens = [law.draw(noise, Stream.DRAFT, position, (*salt, draw)) for draw in range(width)]
    chances = q[tokens].tolist()
    return [
        Guess(token, context.wanted, q, math.log(chance), proposer)
        for token, chance in zip(tokens, chances, strict=True)
        if chance > 0.0
    ]


def first_and_last(text: Sequence[int], window: int) -> Sequence[int]:
    """The first tokens and the last ones, at most `window` together; all of a text within it, or where it is 0.

    What is left out grows by a quarter of the window at a time: in between, a text that goes on is read on.

    Reference: Xiao et al., StreamingLLM, arXiv:2309.17453. Differs: what stays is read anew when the window moves, so
    nothing that was left out is remembered in it.
    """
    if not window or len(text) <= window:
        return text
    step = (window - _SINKS) // 4
    left_out = -(-(len(text) - window) // step) * step
    return [*text[:_SINKS], *text[_SINKS + left_out :]]


class TokenCounts:
    """Tokens with how often they came. Of too many, those that came least are forgotten."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._counts: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, tokens: Sequence[int]) -> None:
        self._counts.update(tokens)
        if len(self._counts) > 2 * _MOST:
            self._counts = Counter(dict(self._ranked()))

    def ranked(self) -> list[int]:
        """The tokens, those that came most often first, of equals the one with the lower number."""
        return [token for token, _ in self._ranked()]

    def to_bytes(self) -> bytes:
        """The tokens and their counts; the same counts give the same bytes."""
        return np.array(self._ranked(), _FORMAT).tobytes()

    def restore(self, data: bytes) -> None:
        """Go on from these bytes, if any; ValueError if they are not `to_bytes`' for such a vocabulary."""
        if len(data) % (2 * _FORMAT.itemsize) or len(data) > 2 * _FORMAT.itemsize * _MOST:
            raise ValueError(f"{len(data)} bytes are not token counts")
        tokens, counts = np.frombuffer(data, _FORMAT).reshape(-1, 2).T
        if len(np.unique(tokens)) < len(tokens) or (tokens >= self._vocab_size).any():
            raise ValueError("token counts of another vocabulary")
        self._counts = Counter(dict(zip(tokens.tolist(), counts.tolist(), strict=True)))

    def _ranked(self) -> list[tuple[int, int]]:
        """At most `_MOST` of (token, count)."""
        fewer = [(-count, token) for token, count in self._counts.items()]
        return [(token, -less) for less, token in heapq.nsmallest(_MOST, fewer)]


class FrequentHead:
    """The head that a draft model's passes ask for: of the frequent tokens alone, where its vocabulary is larger.

    Frequent are the tokens that the target wrote most in this user's chats, and after them those with the lowest
    numbers: a tokenizer that is trained by merging pairs or by likelihood numbers its tokens by frequency. In English
    prose and in Python the lowest 65 536 of Qwen2.5's 151 936 are 98 of 100 tokens, and with the text's own 99. A model
    that was trained to guess some tokens alone knows which are frequent: of the others, only the text's own are added.
    """

    def __init__(self, model: Model, size: int, vocab_size: int) -> None:
        """No rows yet; `size` tokens besides those of the text, 0 for all, below 0 for what fits the vocabulary; none
        from `vocab_size` on."""
        self._model = model
        self._vocab_size = min(vocab_size, model.vocab_size)
        if size < 0:
            size = min(self._vocab_size // 2, _MOST_KEPT) if self._vocab_size > _LEAST_TRIMMED else self._vocab_size
        self._known = model.guessable if isinstance(model, GuessesSome) and size else ()
        self._size = min(size, len(self._known)) if self._known else size
        self._trims = 0 < self._size < self._vocab_size
        self._used = TokenCounts(self._vocab_size)
        self._head: HeadOfSome | None = None

    @property
    def request(self) -> PassRequest:
        return DEFAULT_REQUEST if self._head is None else PassRequest(head=self._head)

    def start(self, history: Sequence[int]) -> None:
        """A text begins; its tokens can be guessed."""
        if self._trims and self._head is None:
            known = set(self._known) or range(self._vocab_size)
            ranked = [token for token in self._used.ranked() if token in known]
            frequent = dict.fromkeys([*ranked, *(self._known or range(self._size))])
            self._head = self._model.trimmed_head(list(frequent)[: self._size])
        self._add(history)

    def learn(self, emitted: Sequence[int]) -> None:
        if self._trims:
            self._used.add(emitted)
            self._add(emitted)

    def save_state(self) -> bytes:
        return self._used.to_bytes()

    def restore_state(self, state: bytes) -> None:
        """Continue from saved counts; raises ValueError if they are damaged or of another vocabulary."""
        self._used.restore(state)
        self._head = None

    def _add(self, tokens: Sequence[int]) -> None:
        if self._head is not None:
            self._head.add([token for token in tokens if token < self._vocab_size])


def over_vocabulary(tokens: Tensor, logits: Tensor, vocab_size: int) -> Tensor:
    """(V,) logits of (H,) those of some tokens; what cannot be guessed is impossible."""
    spread = logits.new_full((vocab_size,), -torch.inf)
    spread[to_device(tokens, logits.device)] = logits
    return spread
