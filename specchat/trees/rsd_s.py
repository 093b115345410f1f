"""RSD-S: stochastic beam search. Sequences are drawn without replacement, a fixed number at every level."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch

from specchat.core.budget import Budget
from specchat.core.compiled_guessing import GrowthPlan
from specchat.core.context import Context
from specchat.core.noise import Stream
from specchat.core.seams import Drafter, TreePolicy
from specchat.core.tree import ROOT, DrawKind, Guess, TokenTree
from specchat.trees.growth import Growth
from specchat.trees.options import RsdSOptions


class _Beam(NamedTuple):
    """A node of the current level: its path's log-probability, and that with Gumbel noise."""

    node: int
    logprob: float
    score: float


class _Child(NamedTuple):
    """A guess that competes for the beam."""

    guess: Guess
    logprob: float
    score: float


class RsdS(TreePolicy):
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

    keeps_draws = True
    unsuited_draws = frozenset({DrawKind.IID})

    def __init__(self, options: RsdSOptions) -> None:
        self._beams = options.beams

    def grow(self, drafter: Drafter, context: Context, budget: Budget) -> TokenTree:
        beams, width = self._beams or max(1, budget.nodes // max(1, budget.depth)), budget.width
        floor = budget.price(max(1, min(budget.nodes, beams * budget.depth)))
        tree = drafter.grow_at_once(context, GrowthPlan(budget, floor=floor, levels=True, beams=beams))
        if tree is not None:
            return tree
        noise = context.noise.child(f"rsd_s/{context.round}")
        growth = Growth(context, budget, floor)
        level = [_Beam(ROOT, 0.0, 0.0)] if width > 0 else []
        while growth.room > 0 and (level := [beam for beam in level if growth.may_have_children(beam.node)]):
            nodes = [beam.node for beam in level]
            proposal = list(growth.ask(drafter, nodes, width))  # what comes in rows is made into guesses once
            gumbels: Iterable[Sequence[float]] = itertools.repeat((0.0,) * width)
            if any(guess.kind is DrawKind.WOR for guesses in proposal for guess in guesses):
                slots = torch.arange(width) + width * torch.tensor(nodes)[:, None]
                gumbels = noise.gumbel(Stream.DRAFT, context.position(growth.tree, nodes[0]), slots).tolist()
            children = [
                _scored(beam, guesses[:width], own)
                for beam, guesses, own in zip(level, proposal, gumbels, strict=False)
            ]
            level = _survivors(growth, nodes, children, min(beams, growth.room))
        return growth.best_tree()


def _survivors(growth: Growth, nodes: list[int], children: list[Iterator[_Child]], count: int) -> list[_Beam]:
    """Give the `count` children of highest score their places; of equals the earlier ones."""
    every = [(at, child) for at, some in enumerate(children) for child in some]
    best = sorted(range(len(every)), key=lambda index: -every[index][1].score)[:count]
    kept: list[list[_Child]] = [[] for _ in nodes]
    for at, child in map(every.__getitem__, sorted(best)):
        kept[at].append(child)
    following: list[_Beam] = []
    for node, some in zip(nodes, kept, strict=True):
        new = growth.consider(node, [child.guess for child in some])
        following += [_Beam(new[i], child.logprob, child.score) for i, child in enumerate(some) if i in new]
    return following


def _scored(parent: _Beam, guesses: Sequence[Guess], gumbels: Sequence[float]) -> Iterator[_Child]:
    """The guesses below a node with their scores: perturbed ones for draws, plain log-probabilities for points.

    Args:
        gumbels: standard Gumbel noise, one for each guess; only draws need it.
    """
    score, left = parent.score, 1.0
    for rank, (guess, gumbel) in enumerate(zip(guesses, gumbels, strict=False)):
        own = guess.logprob if guess.logprob is not None else -(rank + 1) * math.log(2.0)
        logprob = parent.logprob + own
        if guess.kind is not DrawKind.WOR:
            yield _Child(guess.as_point(), logprob, logprob)
            continue
        if left < 1.0:
            location = parent.logprob + math.log(left)
            score = truncated(location + gumbel, location, score)
        yield _Child(guess, logprob, score)
        left = max(left - math.exp(own), 1e-300)


def truncated(drawn: float, location: float, bound: float) -> float:
    """A Gumbel variable around `location`, given that it is at most `bound`, from one drawn without that bound."""
    return location - math.log(math.exp(min(700.0, location - bound)) + math.exp(min(700.0, location - drawn)))
