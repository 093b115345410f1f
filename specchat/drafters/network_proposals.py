"""Proposals of drafters that read nodes of a tree with a network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from specchat.core.context import Context
from specchat.core.seams import Proposal
from specchat.core.tree import TokenTree
from specchat.drafters.likeliest_tokens import LikeliestByNode
from specchat.drafters.point_guesses import coupled, points_of


def points_below(
    said: LikeliestByNode[Any],
    tree: TokenTree,
    nodes: Sequence[int],
    width: int,
    context: Context,
    *,
    proposer: str,
    noisy: bool,
    logits: Callable[[int], Tensor],
) -> Proposal:
    """For each of these nodes, which were read, up to `width` points.

    Args:
        said: the likeliest tokens after every node that was read.
        noisy: whether points are ordered by the target's own noise, not by probability.
        logits: node → (V,) logits after it, from which points get q where the rule needs that.
    """
    if not (noisy or context.sampling.penalised):
        points: Proposal = said.points(nodes, width, proposer)
    else:
        tokens, logprobs = said.candidates(tree, nodes, context)
        if noisy:
            positions = [context.position(tree, node) for node in nodes]
            tokens, logprobs = coupled(tokens, logprobs, positions, context)
        points = points_of(tokens, logprobs, width, proposer)
    if not context.wants_q:
        return points
    laws = (context.law_after(tree, node, logits(node)).dense(context.vocab_size) for node in nodes)
    return [[point._replace(q=q) for point in some] for q, some in zip(laws, points, strict=True)]


def for_frontier(frontier: Sequence[int], nodes: Sequence[int], guesses: Proposal) -> Proposal:
    """These guesses below some nodes of the frontier, in its order, and none below the others."""
    if len(nodes) == len(frontier):
        return guesses
    said = dict(zip(nodes, guesses, strict=True))
    return [said.get(node, ()) for node in frontier]
