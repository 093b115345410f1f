"""Drafters whose law is known for every path, so that what a policy grows from it can be computed by hand."""

from __future__ import annotations

import math
from functools import cache

import torch
from contracts.kit import context_for
from contracts.proposing import Proposing

from specchat.core.noise import Stream
from specchat.core.sampling import Sampling
from specchat.core.seams import Drafter
from specchat.core.tree import DrawKind, Guess, TokenTree

V = 4
IID, WOR, POINT = DrawKind.IID, DrawKind.WOR, DrawKind.POINT


def law(path, seed=0) -> torch.Tensor:
    """A random law for every path."""
    return _law(tuple(path), seed)


@cache
def _law(path: tuple[int, ...], seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(hash((seed, *path)) % 2**31)
    return torch.softmax(2.0 * torch.randn(V, generator=generator, dtype=torch.float64), dim=0)


def likely(seed=0):
    """A drafter that knows the law and proposes the likeliest tokens."""

    def guesses(tree, node, width, context):
        q = law(tree.path_tokens(node), seed)
        best = q.topk(min(width, V)).indices.tolist()
        return [Guess(token, logprob=math.log(q[token])) for token in best]

    return Proposing(guesses)


def drawing(kind, seed=0):
    """A drafter that draws from the law."""

    def guesses(tree, node, width, context):
        q = law(tree.path_tokens(node), seed)
        position, salt = context.position(tree, node), (context.round, node)
        noisy = q.log() + context.noise.gumbel(Stream.DRAFT, position, torch.arange(V), salt)
        if kind is WOR:
            tokens = noisy.topk(min(width, V)).indices.tolist()
        else:
            gumbels = [context.noise.gumbel(Stream.DRAFT, position, torch.arange(V), (*salt, i)) for i in range(width)]
            tokens = [int((q.log() + g).argmax()) for g in gumbels]
        return [Guess(token, kind, q, math.log(q[token]), "drawing") for token in tokens]

    return Proposing(guesses)


def context(seed=7):
    return context_for(Sampling(temperature=1.0), seed, V, [1])


def value(path, seed=0) -> float:
    return math.prod(float(law(path[:i], seed)[token]) for i, token in enumerate(path))


def saved(tree: TokenTree, seed=0) -> float:
    """Sum of path values: the expected accepted tokens under `follow` if the target has this law."""
    return sum(value(tuple(tree.path_tokens(node)), seed) for node in range(1, len(tree)))


class Costly(Drafter):
    """A drafter for which every call is a pass of a model."""

    passes = 0

    def __init__(self, inner):
        self.inner = inner

    def propose(self, *question):
        self.passes += 1
        return self.inner.propose(*question)


def paths_of(tree: TokenTree) -> set[tuple[int, ...]]:
    """The root paths of all draft nodes."""
    return {tuple(tree.path_tokens(node)) for node in range(1, len(tree))}


def every_tree(nodes, depth, width):
    """Every closed set of rank paths."""
    grown = {frozenset()}
    for _ in range(nodes):
        longer = set()
        for tree in grown:
            for parent in ((), *tree):
                rank = sum(path[:-1] == parent for path in tree)
                if len(parent) < depth and rank < width:
                    longer.add(tree | {(*parent, rank)})
        grown = longer
    return grown
