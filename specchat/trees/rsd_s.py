"""RSD-S: stochastic beam search. Sequences are drawn without replacement, a fixed number at every level."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from specchat.core.budget import Budget
from specchat.core.context import Context
from specchat.core.noise import Noise, Stream
from specchat.core.request import LayerHook
from specchat.core.round import Round
from specchat.core.seams import Drafter
from specchat.core.tree import ROOT, DrawKind, Guess, TokenTree
from specchat.trees.growth import Growth
from specchat.trees.options import RsdSOptions


@dataclass(frozen=True)
class _Beam:
    """A node of the current level: its path's log-probability, and that with Gumbel noise."""

    node: int
    logprob: float
    score: float


@dataclass(frozen=True)
class _Child:
    """A guess that competes for the beam."""

    rank: int
    guess: Guess
    logprob: float
    score: float


class RsdS:
    """At every level the W guesses of highest perturbed log-probability, wherever their parents are.

    The draws below a node come without replacement, in the order of their perturbed log-probabilities. The best of
    them has the perturbed log-probability of its parent; each later one is a Gumbel variable around the log of the mass
    that its elder siblings leave, truncated to the score before it. Given the elder siblings, these scores are
    independent of the draw's own token, so they are drawn here and the drafter need not hand them over; and so whether
    a draw survives never depends on its token, and `recursive` judges it exactly. For points this is beam search.

    Reference: Jeon et al., Recursive Speculative Decoding, arXiv:2402.14160 (RSD-S); Kool et al., Stochastic Beams and
    Where to Find Them, arXiv:1903.06059. Differs: a node gets at most `width` children; where rows have a price, every
    node pays that of the last one planned, because ranks among survivors would depend on tokens.
    """

    keeps_draws: Final = True
    unsuited_draws: Final = frozenset({DrawKind.IID})
    taps: Sequence[int] = ()

    def __init__(self, options: RsdSOptions) -> None:
        self._beams = options.beams

    def hooks(self, tree: TokenTree) -> Sequence[LayerHook]:
        return ()

    def observe(self, round: Round) -> None:
        """Nothing to learn."""

    def grow(self, drafter: Drafter, context: Context, budget: Budget) -> TokenTree:
        beams = self._beams or max(1, budget.nodes // max(1, budget.depth))
        noise = context.noise.child("rsd_s")
        growth = Growth(context, budget, floor=budget.price(max(1, min(budget.nodes, beams * budget.depth))))
        level = [_Beam(ROOT, 0.0, 0.0)] if budget.width > 0 else []
        while growth.room > 0 and (level := [beam for beam in level if growth.may_have_children(beam.node)]):
            proposal = drafter.propose(growth.tree, [beam.node for beam in level], budget.width, context)
            children = [
                _scored(
                    beam,
                    guesses[: budget.width],
                    noise,
                    (context.round, beam.node),
                    context.position(growth.tree, beam.node),
                )
                for beam, guesses in zip(level, proposal, strict=True)
            ]
            level = _survivors(growth, level, children, min(beams, growth.room))
        return growth.best_tree()


def _survivors(growth: Growth, level: list[_Beam], children: list[list[_Child]], count: int) -> list[_Beam]:
    """Give the `count` children of highest score their places; of equals the earlier."""
    every = sorted((-child.score, at, child.rank) for at, some in enumerate(children) for child in some)
    chosen = {(at, rank) for _, at, rank in every[:count]}
    following: list[_Beam] = []
    for at, (beam, some) in enumerate(zip(level, children, strict=True)):
        kept = [child for child in some if (at, child.rank) in chosen]
        new = growth.consider(beam.node, [child.guess for child in kept])
        following += [_Beam(new[i], child.logprob, child.score) for i, child in enumerate(kept) if i in new]
    return following


def _scored(
    parent: _Beam, guesses: Sequence[Guess], noise: Noise, salt: tuple[int, ...], position: int
) -> list[_Child]:
    """The guesses below a node with their scores: perturbed ones for draws, plain log-probabilities for points."""
    scored: list[_Child] = []
    score, left = parent.score, 1.0
    for rank, guess in enumerate(guesses):
        own = guess.logprob if guess.logprob is not None else -(rank + 1) * math.log(2.0)
        logprob = parent.logprob + own
        if guess.kind is not DrawKind.WOR:
            scored.append(_Child(rank, guess.as_point(), logprob, logprob))
            continue
        if left < 1.0:
            uniform = noise.uniform(Stream.DRAFT, position, rank, salt)
            score = truncated_gumbel(parent.logprob + math.log(left), score, uniform)
        scored.append(_Child(rank, guess, logprob, score))
        left = max(left - math.exp(own), 1e-300)
    return scored


def truncated_gumbel(location: float, bound: float, uniform: float) -> float:
    """A Gumbel variable around `location`, given that it is at most `bound`, from a uniform number."""
    return location - math.log(math.exp(min(700.0, location - bound)) - math.log(uniform))
