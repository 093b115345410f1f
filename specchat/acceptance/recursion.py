"""`multi_step` and `recursive`: a node's draws are tried in turn, each against what is left of the target's law.

Rules that lend or blend laws share the recursion.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specchat.acceptance.walk import walk
from specchat.core.context import Context
from specchat.core.noise import Stream
from specchat.core.reading import Reading
from specchat.core.round import Verdict
from specchat.core.sampling import Law
from specchat.core.seams import AcceptanceRule
from specchat.core.tree import Draw, DrawKind, TokenTree


@dataclass(frozen=True)
class Trial:
    """One sampled draw before its coin is flipped.

    Args:
        index: its place among all draws of its parent.
        token: the drawn token.
        chance: probability with which it is accepted.
        left: (V,) what remains of the target's law where it is not.
    """

    index: int
    token: int
    chance: float
    left: Tensor


def token_after(tree: TokenTree, node: int, reading: Reading, context: Context, lenience: float = 1.0) -> int:
    """The token that follows `node`: the first sampled draw whose coin says yes, else one from what is left of p.

    The last draw uses the target's stream, as plain decoding does, so a node whose children are all points (and
    every node at temperature 0) gets exactly the token that `follow` gives it. It cannot be a rejected draw, of
    whose token nothing is left; where it is a child, that child was proposed as a point.

    Synchronises with the device once per sampled draw and once for the last one.

    Args:
        lenience: see `trials`.
    """
    law = context.law_after(tree, node, reading.after(node))
    position = context.position(tree, node)
    draws = tree.draws(node)
    if any(draw.guess.kind is not DrawKind.POINT for draw in draws):
        outcome = accepted_or_left(law.dense(context.vocab_size), draws, node, position, context, lenience)
        if isinstance(outcome, int):
            return outcome
        law = Law.of(outcome)
    return law.draw(context.noise, Stream.TARGET, position)


def accepted_or_left(
    p: Tensor,
    draws: Sequence[Draw],
    node: int,
    position: int,
    context: Context,
    lenience: float = 1.0,
    skip: int = 0,
) -> int | Tensor:
    """The token of the first sampled draw that is accepted, or else what is left of the (V,) law p.

    Args:
        draws: all draws at `node`.
        skip: draws before this one were tried already; p is what they left.
    """
    left = p
    for trial in trials(p, draws, lenience, skip):
        salt = (context.round, node, trial.index)
        if context.noise.uniform(Stream.ACCEPT, position, trial.token, salt) < trial.chance:
            return trial.token
        left = trial.left
    return left


def trials(p: Tensor, draws: Sequence[Draw], lenience: float = 1.0, skip: int = 0) -> Iterator[Trial]:
    """Every sampled draw in its order, put to the test against what the draws before it left of the target's law.

    A draw that is distributed as g, given that it happens and that those before it were rejected, is accepted
    with probability min(1, r(x)/g(x)). Accepting it gives token x with probability min(r(x), g(x)); rejecting it
    leaves norm((r − g)+); together that is r again, whatever g was. So the token is distributed as p, by induction
    from the last draw backwards. g is q for independent draws; for draws without replacement it is q without the
    tokens the same proposer drew here before, and those of other proposers do not matter.

    Arithmetic alone, no coins: the law of the outcome can be enumerated.

    Args:
        p: (V,) float64, the target's processed law.
        draws: all draws at one node; points are skipped, for they have no law to be tested against.
        lenience: factor on g; below 1 more is accepted than is exact.
        skip: draws before this one are not tried.
    """
    left = p
    for index, draw, q in draw_laws(draws, p):
        if index < skip:
            continue
        g = q if lenience == 1.0 else lenience * q
        remaining = _residual(left, g)
        yield Trial(index, draw.guess.token, _chance(left, g, draw.guess.token), remaining)
        left = remaining


def draw_laws(draws: Sequence[Draw], like: Tensor) -> Iterator[tuple[int, Draw, Tensor]]:
    """Every sampled draw at one node: its place among all draws there, and (V,) its law given those before it.

    Args:
        like: on its device the laws are.
    """
    taken: dict[str, list[int]] = defaultdict(list)
    for index, draw in enumerate(draws):
        guess = draw.guess
        if guess.kind is DrawKind.POINT:
            continue
        assert guess.q is not None, f"{guess.proposer} gives no distribution for a draw that it says it sampled"
        q = guess.q.to(like)
        earlier = taken[guess.proposer] if guess.kind is DrawKind.WOR else []
        g = _without(q, earlier) if earlier else q
        taken[guess.proposer].append(guess.token)
        if g is not None:  # else nothing representable was left to draw from, whatever the token: a draw without a law
            yield index, draw, g


def _chance(r: Tensor, g: Tensor, token: int) -> float:
    wanted, offered = torch.stack([r[token], g[token]]).tolist()
    return 1.0 if wanted >= offered else wanted / offered


def _residual(r: Tensor, g: Tensor) -> Tensor:
    """(V,) norm((r − g)+). Where r = g nothing is ever rejected; rounding that claims otherwise keeps r."""
    rest = (r - g).clamp_(min=0.0)
    mass = float(rest.sum())
    return rest.div_(mass) if mass > 0.0 else r


def _without(q: Tensor, tokens: Sequence[int]) -> Tensor | None:
    """(V,) q without these tokens, renormalised; None where nothing else has a probability."""
    rest = q.clone()
    rest[list(tokens)] = 0.0
    mass = float(rest.sum())
    return rest.div_(mass) if mass > 0.0 else None


class MultiStep(AcceptanceRule):
    """Try the children of a node in turn; each was drawn from q, independently of the others.

    Two independent draws of the same token are two tries. With one draw per node this is speculative sampling.

    Reference: Miao et al., SpecInfer, arXiv:2305.09781 (for one draw Leviathan et al., arXiv:2211.17192). Differs:
    draws are tried in the order they were made instead of in a random one, which for independent draws is the same.
    """

    lossless = True
    wanted = DrawKind.IID

    def judge(self, tree: TokenTree, reading: Reading, context: Context) -> Verdict:
        return walk(tree, reading, lambda node: token_after(tree, node, reading, context))


class Recursive(MultiStep):
    """Try the children of a node in turn; each was drawn from q without the ones before it.

    What earlier children cover is taken from both laws, so as many children as q has tokens are sure to cover p.

    Reference: Jeon et al., Recursive Speculative Decoding, arXiv:2402.14160. Differs: where children come from is
    the tree policy's business (`expansion` is its constant tree; its stochastic beam search is another policy).
    """

    wanted = DrawKind.WOR
