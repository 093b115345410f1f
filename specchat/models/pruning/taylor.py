"""How much the loss would change without each head and channel, to first order, from gradients on a few texts."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from specchat.core.drafting_networks import Ranking
from specchat.models.base.differentiable_layer import Gates, layer_output
from specchat.models.base.shape import Shape
from specchat.models.weights.weight_source import WeightSource

HEAD_ROWS = 4096
"""Rows of the head whose logits are computed at once."""


def taylor_ranking(shape: Shape, source: WeightSource, texts: Tensor) -> Iterator[Ranking | None]:
    """Rank heads and channels by first-order Taylor importance; None after every piece of work, then the ranking.

    The importance of a group of weights is |Σ w · dL/dw| over the group, summed over the texts. For the weights that a
    head or a channel is read out by, that sum is the derivative of the loss by a factor on what the head or channel
    passes on. So one such factor each, and no gradient of any weight, is all that is computed; and since a layer's
    input is kept, one layer's weights at a time.

    Args:
        source: prepared for a decoder of this shape.
        texts: (B, S) int64 tokens.

    Reference: Ma et al., LLM-Pruner, arXiv:2305.11627 (vector-wise importance, of the last product of a group).
    """
    heads, channels = torch.zeros(shape.layers, shape.heads), torch.zeros(shape.layers, shape.inner)
    inputs = [source.embed(texts.flatten().tolist()).view(*texts.shape, -1).float()]
    for index in range(shape.layers):
        with torch.no_grad():
            inputs.append(layer_output(shape, source, index, inputs[-1], Gates.open(shape, len(texts))))
        source.let_go()
        yield None
    gradient = loss_gradient(shape, source, inputs.pop(), texts)
    yield None
    for index in reversed(range(shape.layers)):
        hidden, gates = inputs.pop().requires_grad_(), Gates.open(shape, len(texts))
        factors = (gates.heads.requires_grad_(), gates.channels.requires_grad_())
        with torch.enable_grad():
            out = layer_output(shape, source, index, hidden, gates)
        gradient, of_heads, of_channels = torch.autograd.grad(out, (hidden, *factors), gradient)
        heads[index], channels[index] = of_heads.abs().sum(dim=0), of_channels.abs().sum(dim=0)
        source.let_go()
        yield None
    yield Ranking.of(heads, channels)


@torch.no_grad()
def loss_gradient(shape: Shape, source: WeightSource, hidden: Tensor, texts: Tensor) -> Tensor:
    """(B, S, d) derivative of the summed next-token loss by the states after the last layer."""
    states, following = hidden[:, :-1], texts[:, 1:]
    norm, name = source.dense("norm"), "embed" if shape.tied else "head"
    normed = F.rms_norm(states, (shape.hidden,), norm, shape.epsilon)
    total = torch.full(following.shape, -torch.inf)
    for first in range(0, shape.vocab_size, HEAD_ROWS):
        logits = normed @ source.dense(name, rows=slice(first, first + HEAD_ROWS)).t()
        total = torch.logaddexp(total, torch.logsumexp(logits, dim=-1))
    gradient = -source.dense(name, rows=following.flatten().tolist()).view_as(normed)
    for first in range(0, shape.vocab_size, HEAD_ROWS):
        rows = source.dense(name, rows=slice(first, first + HEAD_ROWS))
        gradient += (normed @ rows.t() - total[..., None]).exp() @ rows
    with torch.enable_grad():
        leaf = states.detach().requires_grad_()
        normed = F.rms_norm(leaf, (shape.hidden,), norm, shape.epsilon)
    (of_states,) = torch.autograd.grad(normed, leaf, gradient)
    return F.pad(of_states, (0, 0, 0, 1))


def magnitude_ranking(shape: Shape, source: WeightSource) -> Ranking:
    """Heads and channels by the mean square of their weights: what is taken until texts tell more."""
    heads, channels = torch.zeros(shape.layers, shape.heads), torch.zeros(shape.layers, shape.inner)
    for index in range(shape.layers):
        rows = source.dense("q", index).view(shape.heads, -1)
        columns = source.dense("o", index).t().reshape(shape.heads, -1)
        heads[index] = rows.square().sum(dim=1) + columns.square().sum(dim=1)
        channels[index] = source.dense("down", index).square().sum(dim=0)
        for name in ("gate", "up"):
            channels[index] += source.dense(name, index).square().sum(dim=1)
        source.let_go()
    return Ranking.of(heads, channels)
