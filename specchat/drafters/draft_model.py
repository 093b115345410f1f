"""A smaller model with the target's tokens guesses level by level, with a cache of its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specchat.core.noise import Stream
from specchat.core.round import Round
from specchat.core.sampling import Law, penalise
from specchat.core.seams import Context, Proposal, Rider
from specchat.core.tree import DrawKind, Guess, TokenTree
from specchat.drafters.options import DraftModelOptions
from specchat.drafters.parts import Parts

_SURENESS = 0.5
"""Temperature of the noisy scores at which their softmax says how often a coupled draw agrees with the target. In a
simulation with 2000 tokens and drafts of three qualities it said 0.76 where 0.90, 0.77 and 0.63 agreed."""


class DraftModel:
    """Reads each frontier once and proposes what the draft model holds likely after it.

    Where the acceptance rule can use the probabilities of draws, children are drawn from q with noise of the
    drafter's own. Otherwise they are points: the most likely tokens, or, above temperature 0, the tokens that win
    when the *target's* own noise at that position is added to log q ("coupled"). Target and draft then lean the
    same way for the same reason and agree far more often, and the text cannot depend on it, because under `follow`
    it does not depend on the tree at all.

    Reference: Leviathan et al., Fast Inference from Transformers via Speculative Decoding, arXiv:2211.17192;
    Daliri, Musco, Suresh, Drafter-Invariant Speculative Decoding, arXiv:2408.07978.
    """

    taps: Sequence[int] = ()

    @staticmethod
    def draw_kinds(options: DraftModelOptions) -> frozenset[DrawKind]:
        """The kinds of draws it can make: forced to its favourites or to the target's noise, points alone."""
        return frozenset(DrawKind) if options.drawing == "auto" else frozenset({DrawKind.POINT})

    def __init__(self, options: DraftModelOptions, parts: Parts) -> None:
        assert parts.draft_model is not None, "assemble refuses this drafter without a draft model"
        self._model = parts.draft_model
        self._vocab_size = parts.vocab_size
        self._drawing = options.drawing
        self._kinds = self.draw_kinds(options)
        self._tree: TokenTree | None = None
        self._logits: dict[int, Tensor] = {}

    @property
    def passes(self) -> int:
        return self._model.counters.passes

    def start(self, history: Sequence[int]) -> None:
        """Read the text up to the root, so that the first round does not pay for the prompt."""
        self._forget_tree()
        self._model.prefill(history[:-1])

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        if self._tree is not tree:
            self._forget_tree()
            self._model.prefill(context.history[:-1])
            self._tree = tree
        self._read(tree, frontier)
        return [self._guesses(tree, node, width, context) for node in frontier]

    def riders(self, tree: TokenTree) -> Sequence[Rider]:
        return ()

    def observe(self, round: Round) -> None:
        """Keep the accepted path, found by tokens: it may leave this drafter's tree or end in unread nodes."""
        if self._tree is not None:
            self._model.keep(self._tree.follow(round.emitted))
            self._forget_tree()

    def _read(self, tree: TokenTree, frontier: Sequence[int]) -> None:
        """Read the frontier and whatever lies unread above it (nodes that another drafter proposed)."""
        unread = {n for node in frontier for n in (0, *tree.path(node))} - self._logits.keys()
        if unread:
            reading = self._model.read(tree, sorted(unread))
            # A draft model may have rows of padding that the target's table has not: they are never proposed.
            self._logits |= {node: reading.after(node)[: self._vocab_size] for node in unread}

    def _guesses(self, tree: TokenTree, node: int, width: int, context: Context) -> list[Guess]:
        logits = self._logits[node]
        if context.wanted in self._kinds - {DrawKind.POINT} and not context.sampling.greedy:
            return self._drawn(tree, node, width, context)
        if self._drawing == "coupled" or (self._drawing == "auto" and not context.sampling.greedy):
            return self._coupled(tree, node, width, context)
        path = tree.path_tokens(node) if context.sampling.penalised else ()
        best = penalise(logits, context.sampling, context.counts, path).topk(min(width, logits.numel())).indices
        return _points(best, torch.log_softmax(logits.float(), dim=-1)[best])

    def _coupled(self, tree: TokenTree, node: int, width: int, context: Context) -> list[Guess]:
        """The tokens that win with the target's own noise, with the chance that the target agrees.

        That chance is about how far ahead they won, not about q: a softmax over the noisy scores.
        """
        law = context.law_after(tree, node, self._logits[node])
        ids = law.all_ids()
        scores = law.logprobs + context.noise.gumbel(Stream.TARGET, context.position(tree, node), ids)
        places = scores.topk(min(width, ids.numel())).indices
        return _points(ids[places], torch.log_softmax(scores / _SURENESS, dim=-1)[places])

    def _drawn(self, tree: TokenTree, node: int, width: int, context: Context) -> list[Guess]:
        """Draws from q with the drafter's own noise: independent ones, or without replacement."""
        law = context.law_after(tree, node, self._logits[node])
        q = law.dense(context.vocab_size)
        tokens = self._sampled(law, node, width, context, context.position(tree, node))
        return [Guess(t, context.wanted, q, float(q[t].log()), "draft_model") for t in tokens]

    def _sampled(self, law: Law, node: int, width: int, context: Context, position: int) -> list[int]:
        salt = (context.round, node)
        if context.wanted is DrawKind.WOR:
            return [int(t) for t in law.best(width, context.noise, Stream.DRAFT, position, salt)]
        return [law.draw(context.noise, Stream.DRAFT, position, (*salt, draw)) for draw in range(width)]

    def _forget_tree(self) -> None:
        self._tree = None
        self._logits = {}


def _points(tokens: Tensor, logprobs: Tensor) -> list[Guess]:
    pairs = zip(tokens.tolist(), logprobs.tolist(), strict=True)
    return [Guess(token, logprob=logprob, proposer="draft_model") for token, logprob in pairs]
