"""RAPID's transfer: the target's law is moved towards the draft's before a draw is tested."""

from __future__ import annotations

import torch
from torch import Tensor

from specchat.acceptance.options import TransferOptions
from specchat.acceptance.recursion import accepted_or_left
from specchat.acceptance.walk import own_token, walk
from specchat.core.context import Context
from specchat.core.noise import Stream
from specchat.core.reading import Reading
from specchat.core.round import Verdict
from specchat.core.sampling import Law
from specchat.core.seams import AcceptanceRule
from specchat.core.tree import DrawKind, TokenTree

_SHARE = 0.1
"""Only tokens at least so likely as this share of the draft's likeliest one are moved."""


class Transfer(AcceptanceRule):
    """The first draw x from q is accepted with probability min(1, p'(x) / q(x)), with p' between p and q.

    log p' is log p + eta (q − p) for the tokens with q ≥ 0.1 max q, normalised. After a rejection
    norm(max(p − q, p − p')+) is left, and further draws are tested against that as `multi_step` does. With eta 0 that
    is `multi_step`, exactly. Meant for a draft model that knows better than the target, such as one that sees the part
    of a long text that matters.

    Reference: Chen et al., RAPID, arXiv:2502.20330. Differs: p and q are the laws as they are sampled from, after
    temperature and truncation, where the published code adds to the raw logits.
    """

    wants_q = True
    wanted = DrawKind.IID

    def __init__(self, options: TransferOptions) -> None:
        self._eta = options.eta

    def judge(self, tree: TokenTree, reading: Reading, context: Context) -> Verdict:
        return walk(tree, reading, lambda node: self._token_after(tree, node, reading, context))

    def _token_after(self, tree: TokenTree, node: int, reading: Reading, context: Context) -> int:
        draws = tree.draws(node)
        first = next((i for i, draw in enumerate(draws) if draw.guess.kind is not DrawKind.POINT), None)
        if first is None:
            return own_token(tree, node, reading, context)
        guess = draws[first].guess
        assert guess.q is not None, f"{guess.proposer} gives no distribution for a draw that it says it sampled"
        p = context.law_after(tree, node, reading.after(node)).dense(context.vocab_size)
        q = guess.q.to(p)
        moved = transferred(p, q, self._eta)
        position = context.position(tree, node)
        salt = (context.round, node, first)
        coin = context.noise.uniform(Stream.ACCEPT, position, guess.token, salt)
        if coin * float(q[guess.token]) < float(moved[guess.token]):
            return guess.token
        left = rest_after_rejection(p, q, moved)
        outcome = accepted_or_left(left, draws, node, position, context, skip=first + 1)
        if isinstance(outcome, int):
            return outcome
        return Law.of(outcome).draw(context.noise, Stream.TARGET, position)


def transferred(p: Tensor, q: Tensor, eta: float) -> Tensor:
    """(V,) p moved towards q, for (V,) float64 probabilities; where p is 0 it stays 0."""
    shift = torch.where(q >= _SHARE * q.max(), eta * (q - p), torch.zeros_like(p))
    return torch.softmax(p.log() + shift, dim=-1)


def rest_after_rejection(p: Tensor, q: Tensor, moved: Tensor) -> Tensor:
    """(V,) norm(max(p − q, p − p')+): what a rejected draw leaves; p itself where that is nothing."""
    rest = torch.maximum(p - q, p - moved).clamp_(min=0.0)
    mass = float(rest.sum())
    return rest / mass if mass > 0.0 else p
