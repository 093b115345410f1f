"""NEST: the target's law is mixed with what follows in the text that guesses were copied from, span by span."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from specchat.acceptance.options import NestOptions
from specchat.acceptance.walk import own_token, soft_law, walk
from specchat.core.context import Context
from specchat.core.noise import Stream
from specchat.core.reading import Reading
from specchat.core.round import Verdict
from specchat.core.sampling import Law
from specchat.core.seams import AcceptanceRule
from specchat.core.tree import Guess, TokenTree

_NEAREST = 1e-6
"""The least distance of a copy, so that a ratio of distances exists."""


class Nest(AcceptanceRule):
    """The next token comes from lambda · p + (1 − lambda) · r, and a copy that is trusted brings its whole span.

    r is the law of the copies at a node, by the probabilities their drafter gives them. lambda is
    sigmoid((nearest / farthest − alpha) / tau) over their distances −log r(x): small where one copy is much surer than
    all else. Where lambda < beta and the token is a copy, what follows it in the source is taken too, for as long as
    p(w) ≥ gamma / 2 · max p. `Verdict.sources` says which token of the text each accepted one is a copy of.

    Reference: Li et al., Nearest Neighbor Speculative Decoding, arXiv:2405.19325. Differs: copies are those that
    the drafter finds, by equal tokens, or by the target's states where a datastore holds some; the farthest distance is
    at least that of what no copy says, so that a single copy can be trusted; at temperature 0 the likeliest token of
    the mixture is taken.
    """

    wants_sources = True

    def __init__(self, options: NestOptions) -> None:
        self._options = options

    def judge(self, tree: TokenTree, reading: Reading, context: Context) -> Verdict:
        """Walk down while the mixture's token, or the next of a trusted span, is a living child."""
        last: int | None = None  # where the last token of the span that is being copied stands in the text
        sources: list[int | None] = []

        def token_after(node: int) -> int:
            nonlocal last
            copies = {d.guess.token: d.guess for d in reversed(tree.draws(node)) if d.guess.source is not None}
            if copies:
                p = soft_law(tree, node, reading, context)
                token, last = self._choose(copies, last, p, context, context.position(tree, node))
            else:
                token, last = own_token(tree, node, reading, context), None
            sources.append(copies[token].source if token in copies else None)
            return token

        verdict = walk(tree, reading, token_after)
        return replace(verdict, sources=tuple(sources[: len(verdict.path)]))

    def _choose(
        self, copies: Mapping[int, Guess], last: int | None, p: Tensor, context: Context, position: int
    ) -> tuple[int, int | None]:
        """The next token, and where its copy stands in the text if a span may go on behind it.

        `last` is where the span stands that may go on here; p: (V,) probabilities of the target.
        """
        following = next((copy for copy in copies.values() if last is not None and copy.source == last + 1), None)
        if following is not None and self.stands(p, following.token):
            return following.token, following.source
        trust = self.coefficient([probability(copy) for copy in copies.values()])
        token = _drawn(mixed(p, copies, trust), context, position)
        return token, copies[token].source if token in copies and trust < self._options.beta else None

    def coefficient(self, probabilities: Sequence[float]) -> float:
        """lambda, the weight of the target's own law, for the probabilities of all copies at a node."""
        rest = 1.0 - sum(probabilities)
        distances = [max(_NEAREST, -math.log(p)) for p in (*probabilities, rest) if p > 0.0]
        ratio = min(distances) / max(distances) if rest > 0.0 else _NEAREST
        return 1.0 / (1.0 + math.exp(-(ratio - self._options.alpha) / self._options.tau))

    def stands(self, p: Tensor, token: int) -> bool:
        """Whether a span may go on with this token, for (V,) probabilities p of the target."""
        return float(p[token]) >= 0.5 * self._options.gamma * float(p.max())


def probability(copy: Guess) -> float:
    """The probability that the drafter gives a copy; half where it gives none."""
    return 0.5 if copy.logprob is None else min(1.0, math.exp(copy.logprob))


def mixed(p: Tensor, copies: Mapping[int, Guess], trust: float) -> Tensor:
    """(V,) trust · p + (1 − trust) · r, for (V,) probabilities p and the copies by their tokens."""
    total = sum(probability(copy) for copy in copies.values())
    law = trust * p
    for token, copy in copies.items():
        law[token] += (1.0 - trust) * probability(copy) / total
    return law


def _drawn(law: Tensor, context: Context, position: int) -> int:
    if context.sampling.greedy:
        return int(law.argmax())
    return Law.of(law).draw(context.noise, Stream.TARGET, position)
