"""The target with a retrieved part of its own cache drafts for the target with all of it; below it drafts another."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from specchat.core.context import Context
from specchat.core.drafting_networks import HoldsPartsByLayer
from specchat.core.request import LOGITS
from specchat.core.round import Round
from specchat.core.sampling import best_tokens, law, penalise
from specchat.core.seams import Drafter, Model, Proposal
from specchat.core.states import HiddenStateSink
from specchat.core.tree import ROOT, DrawKind, Guess, TokenTree
from specchat.drafters.options import SparseContextOptions
from specchat.drafters.parts import Parts
from specchat.drafters.point_guesses import coupled, points_of
from specchat.indexes.text_chunks import TextChunks, chunk_positions

_CHUNK_TOKENS = 8

_RECENT = 4
"""Of the budget, one part in so many is for the last tokens."""

_CANDIDATES = 64


class SparseContext(Drafter):
    """An engine of its own writes ahead with the target's weights and some rows of the target's cache.

    Those are the first chunk of the text, the last tokens, and for each head of keys the chunks whose mean keys answer
    the queries of the text's last token best. The inner engine has a drafter of its own (`below`), so it too writes
    several tokens in a pass: an engine is a drafter of an engine. Its tokens are drawn from the sparse model's own law,
    which goes with them where the rule wants it. Under `follow` they are drawn with the target's own noise. Beside each
    of them stand the next likeliest as points.

    A text no longer than the budget is kept whole; then the guesses are the target's own tokens.

    Reference: Sun et al., TriForce, arXiv:2404.11912. Differs: heads that share their keys hold the chunks that they
    ask for together, and all heads do where the target is shared out; a target that does not tell keys and queries
    (through transformers) has chunks compared by states after one layer; `below` looks up unless it is a draft model,
    which reads the first and last tokens alone with `draft_model(window=512)`; what is written is read by the sparse
    model until the part is chosen anew.
    """

    kinds = frozenset(DrawKind)
    """All kinds: one draw at a node is independent, and without replacement."""

    def __init__(self, options: SparseContextOptions, parts: Parts) -> None:
        (below,) = parts.choices
        self._name, self._noise = parts.proposer, parts.noise
        self._options = options
        self._view = parts.target.with_new_cache()
        self._drafts = parts.drafts_of(below)
        inner = {"drafter": below.name, "nodes": options.ahead, "depth": options.ahead, "width": 1}
        given = {f"{below.name}.{option}": value for option, value in options.members[0].given}
        draft = parts.draft_model if self._drafts else None
        self._engine = parts.engine({**inner, "method_options": given}, self._view, draft)
        self._part = part_of(self._view, parts.target.layers)
        self.hidden_state_sink = self._part.hidden_state_sink
        self._chosen_at = 0  # tokens of the text when the part was chosen
        self._tree: TokenTree | None = None
        self._inner: Context | None = None
        self._written: list[_Step] = []

    @property
    def passes(self) -> int:
        """Forward passes of the sparse model, and of the draft models below it."""
        return self._view.counters.passes + sum(draft.counters.passes for draft in self._drafts)

    def start(self, history: Sequence[int]) -> None:
        """Choose the part of the text, and let the inner engine read what the target does not hold."""
        self._tree = None
        if len(history) <= self._view.context_tokens:
            self._choose(history)
            self._engine.start(history)

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        """Guesses along what the inner engine writes; it writes on when nodes that deep are asked about."""
        if not context.passes or len(context.history) > self._view.context_tokens:
            return [() for _ in frontier]
        if self._tree is not tree:
            self._tree = tree
            self._begin(context)
        return [self._after(tree, node, width, context) for node in frontier]

    def observe(self, round: Round) -> None:
        """The inner engine goes on from what the target wrote."""
        self._tree = None

    def close(self) -> None:
        self._tree, self._inner, self._written = None, None, []
        self._part.forget()

    def _begin(self, context: Context) -> None:
        """Bring the inner engine to the end of the text; its draws are the outer engine's, where those are points."""
        text, budget = context.history, self._options.budget
        if len(text) > budget and not 0 <= len(text) - self._chosen_at < self._options.refresh:
            self._choose(text)
        noise = context.noise
        if context.wanted is not DrawKind.POINT:
            noise = self._noise(noise).child(str(context.round))
        about = context.prompt_tokens, context.vocab_size, context.sampling, noise
        self._inner = Context(list(text), *about, shown=LOGITS)
        self._engine.start(self._inner.history)
        self._written = []

    def _choose(self, history: Sequence[int]) -> None:
        self._part.copy_rows_from(history, self._options.budget)
        self._chosen_at = len(history)

    def _after(self, tree: TokenTree, node: int, width: int, context: Context) -> Sequence[Guess]:
        depth = tree.depths[node]
        if tree.path_tokens(node) != [step.token for step in self._written[:depth]]:
            return ()
        while len(self._written) <= depth:
            assert self._inner is not None, "a round has begun"
            if len(self._inner.history) > self._view.context_tokens:
                return ()
            self._written += self._write(self._inner)
        return self._guesses(self._written[depth], width, context.position(tree, node), context)

    def _write(self, inner: Context) -> list[_Step]:
        before = dataclasses.replace(inner, history=list(inner.history)) if inner.sampling.penalised else inner
        round = self._engine.round(inner)
        steps: list[_Step] = []
        for node, token in zip((ROOT, *round.verdict.path), round.emitted, strict=True):
            path = round.tree.path_tokens(node)
            logits = round.reading.after(node)[: inner.vocab_size]
            steps.append(_Step(token, penalise(logits, inner.sampling, before.counts, path)))
        return steps

    def _guesses(self, step: _Step, width: int, position: int, context: Context) -> Sequence[Guess]:
        """The written token first, as a draw or as a point, and as points the next likeliest."""
        q: Tensor | None = None
        draws = context.wanted is not DrawKind.POINT and not context.sampling.greedy
        if draws or context.wants_q:
            q = law(step.scores, context.sampling).dense(context.vocab_size)
        if draws:
            assert q is not None, "draws have a law"
            return [Guess(step.token, context.wanted, q, float(q[step.token].log()), self._name)]
        certain = torch.log_softmax(step.scores.float(), dim=-1)[None]
        values, best = best_tokens(certain, min(_CANDIDATES, certain.shape[1]))
        tokens, logprobs = best.cpu().numpy(), values.cpu().double().numpy()
        if not context.sampling.greedy:
            tokens, logprobs = coupled(tokens, logprobs, [position], context)
        (points,) = points_of(tokens, logprobs, _CANDIDATES, self._name)
        own = [point for point in points if point.token == step.token]
        others = [point for point in points if point.token != step.token]
        chosen = [*(own or [Guess(step.token, proposer=self._name)]), *others][:width]
        return [point._replace(q=q) for point in chosen] if context.wants_q else chosen


def part_of(view: Model, layers: int) -> PartByLayer | PartByStates:
    """By each layer's own keys and queries where the view has them, else by states after its middle layer."""
    return PartByLayer(view) if isinstance(view, HoldsPartsByLayer) else PartByStates(view, layers // 2)


class PartByLayer:
    """Every head of keys holds the chunks whose mean keys answer its queries best.

    The queries are those of the text's last token, which the target reads next.
    """

    hidden_state_sink: HiddenStateSink | None = None

    def __init__(self, view: HoldsPartsByLayer) -> None:
        self._view = view

    def copy_rows_from(self, history: Sequence[int], budget: int) -> None:
        """Hold what each layer asks for; a text within the budget as it is, without a pass."""
        text = history[:-1]
        if len(text) <= budget:
            self._view.copy_rows_from(text, range(len(text)))
            return
        found = self._view.chunk_scores(history, _CHUNK_TOKENS)

        def between(first: int, end: int) -> Tensor:
            return found.scores[..., first // _CHUNK_TOKENS : end // _CHUNK_TOKENS]

        if found.tokens <= budget:
            self._view.copy_rows_from(text, range(found.tokens))
        else:
            chosen = chunk_positions(found.tokens, budget, budget // _RECENT, _CHUNK_TOKENS, between)
            self._view.copy_rows_by_layer(text, chosen)

    def forget(self) -> None:
        """Nothing is known between two choices."""


class PartByStates:
    """The chunks most like the last token that was read, by states after one layer; the same for all layers."""

    def __init__(self, view: Model, layer: int) -> None:
        self._view = view
        self._chunks = TextChunks(layer, _CHUNK_TOKENS)
        self.hidden_state_sink: HiddenStateSink | None = HiddenStateSink(frozenset({layer}), self._chunks.take)

    def copy_rows_from(self, history: Sequence[int], budget: int) -> None:
        """Hold the chunks most like the end."""
        text = history[:-1]
        chosen = self._chunks.choose(len(text), budget, recent_tokens=budget // _RECENT)
        self._view.copy_rows_from(text, chosen)

    def forget(self) -> None:
        self._chunks.forget()


class _Step(NamedTuple):
    """One token that the inner engine wrote, and the (V,) logits that it drew it from, after penalties."""

    token: int
    scores: Tensor
