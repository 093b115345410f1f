"""Walking down a judged tree, and what rules compare guesses with: the target's own token and law after a node."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from torch import Tensor

from specchat.core.context import Context
from specchat.core.noise import Stream
from specchat.core.reading import Reading
from specchat.core.round import Verdict
from specchat.core.sampling import law, penalise
from specchat.core.tree import ROOT, TokenTree


def walk(tree: TokenTree, reading: Reading, token_after: Callable[[int], int]) -> Verdict:
    """Walk down from the root for as long as the token that follows is a living child.

    Each token is decided before anyone asks whether its node is alive. So pruning in the middle of the pass can
    end the walk, but it can never change a token: the token of a dead child is emitted as the bonus, and the next
    round begins behind it. Dropping the draws of dead children instead would condition those that survive on
    having survived, and bias the text.

    Args:
        token_after: node → the token that follows it; asked once for every visited node, downwards.
    """
    path: list[int] = []
    node = ROOT
    while True:
        token = token_after(node)
        child = tree.child(node, token)
        if child is None or child not in reading.alive:
            return Verdict(tuple(path), token, tree, reading.pruned)
        path.append(child)
        node = child


def own_token(tree: TokenTree, node: int, reading: Reading, context: Context) -> int:
    """The token that plain decoding would emit after `node`, with the same noise."""
    after = context.law_after(tree, node, reading.after(node))
    return after.draw(context.noise, Stream.TARGET, context.position(tree, node))


def soft_law(tree: TokenTree, node: int, reading: Reading, context: Context) -> Tensor:
    """(V,) float64 probabilities after `node`, as the target samples; at temperature 0 those at temperature 1.

    The greedy law is a point, which says nothing about how nearly another token was chosen.
    """
    sampling = context.sampling
    if sampling.greedy:
        sampling = dataclasses.replace(sampling, temperature=1.0)
    path = tree.path_tokens(node) if sampling.penalised else ()
    return law(penalise(reading.after(node), sampling, context.counts, path), sampling).dense(context.vocab_size)
