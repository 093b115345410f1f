"""What lossy rules compare guesses with: the target's law after a node, and the token it draws there itself."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from specchat.core.context import Context
from specchat.core.noise import Stream
from specchat.core.reading import Reading
from specchat.core.sampling import law, penalise
from specchat.core.tree import TokenTree


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
