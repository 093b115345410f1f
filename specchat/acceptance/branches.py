"""Judging branches by all of their tokens together, from their ends up: `block` for chains, `traversal` for trees."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from specchat.acceptance.recursion import draw_laws, trials
from specchat.acceptance.walk import walk
from specchat.core.context import Context
from specchat.core.noise import Stream
from specchat.core.reading import Reading
from specchat.core.round import Verdict
from specchat.core.sampling import Law
from specchat.core.seams import AcceptanceRule
from specchat.core.tree import Draw, DrawKind, TokenTree

LawAfter = Callable[[int], Tensor | None]
"""Node → (V,) float64, the target's processed law after it; None for a node that was dropped in the pass."""

Coin = Callable[[int, int, float], bool]
"""(parent, place among its draws, chance) → whether that draw is accepted. Asked at most once for each draw."""

ALL = sys.maxsize


class Ended(NamedTuple):
    """Where an accepted path ends.

    Args:
        node: its last node.
        law: (V,) of the token after it; None where judging begins anew below the node, or it was dropped.
    """

    node: int
    law: Tensor | None


@dataclass(frozen=True)
class Standing:
    """The share of a node's law that refused branches leave.

    A draw x from g below a node of weight w gets the weight min(1, w r(x) / g(x)). If its branch is accepted with that
    probability, x follows with min(w r(x), g(x)). The node itself gives what is missing from w r(x): it is accepted
    with probability m / (m + 1 − w), where m is the mass of (w r − g)+, and a token from that residual follows it. So x
    follows with probability w r(x) in all, whatever g was.

    Args:
        weight: w, the probability with which the node or a branch below it is accepted, given what was refused.
        law: (V,) r, of the token that follows if so.
    """

    weight: float
    law: Tensor

    def chance(self, g: Tensor, token: int) -> float:
        """The weight of a draw from (V,) g."""
        wanted, offered = torch.stack([self.weight * self.law[token], g[token]]).tolist()
        return 1.0 if wanted >= offered else wanted / offered

    def without(self, g: Tensor) -> Standing:
        """The rest of the law where the branch of a draw from (V,) g was refused."""
        rest = (self.weight * self.law - g).clamp_(min=0.0)
        mass = float(rest.sum())
        if mass <= 0.0:  # a sure node's branch is refused by rounding alone; another node is never accepted any more
            return self if self.weight == 1.0 else Standing(0.0, self.law)
        return Standing(mass / (mass + (1.0 - self.weight)), rest.div_(mass))  # the mass may be lost beside 1


class BranchRule(AcceptanceRule):
    """Judges the branches of a node's first draws as a whole, then the node, then its further draws one by one.

    A branch is refused only when every node of it was. So a draw that would be refused by itself stands where those
    below make up for it. Exact for every way to grow a tree in which no draw's place depends on its own token or those
    below: one more draw, behind the others of its node, leaves the law of the text as it was for every tree so far,
    since branches and node together are accepted with the node's weight (`Standing`), and a draw of the node's that is
    tried alone gives what `trials` says.

    A point stands where the token after an end names it, and judging begins anew there. Points beside draws are another
    matter: whether one has a place may depend on tokens below a draw, with which it competes, and where both name one
    token, these tokens are then not distributed as they say. So `combinations` refuses drafters that mix them
    (`judges_branches`), and of a node with both each draw is judged alone, which is right where places are fixed.

    Attributes:
        branches: how many draws of each node are judged with their branches.
    """

    lossless = True
    judges_branches = True
    branches: ClassVar[int] = ALL

    def judge(self, tree: TokenTree, reading: Reading, context: Context) -> Verdict:
        decided: list[int] = []

        def token_after(node: int) -> int:
            if not decided:
                decided.extend(self._decide(tree, node, reading, context))
            return decided.pop(0)

        return walk(tree, reading, token_after)

    def _decide(self, tree: TokenTree, node: int, reading: Reading, context: Context) -> Sequence[int]:
        """The tokens of the path below an accepted node, and the one after it where that is decided too."""

        def law_after(below: int) -> Tensor | None:
            if below not in reading.alive:
                return None
            return context.law_after(tree, below, reading.after(below)).dense(context.vocab_size)

        def coin(parent: int, index: int, chance: float) -> bool:
            token, position = tree.draws(parent)[index].guess.token, context.position(tree, parent)
            return context.noise.uniform(Stream.ACCEPT, position, token, (context.round, parent, index)) < chance

        if not any(draw.guess.kind is not DrawKind.POINT for draw in tree.draws(node)):  # as `follow` draws it
            after = context.law_after(tree, node, reading.after(node))
            return (after.draw(context.noise, Stream.TARGET, context.position(tree, node)),)
        end, law = path_end(tree, node, law_after, coin, self.branches)
        tokens = tree.path_tokens(end)[tree.depths[node] :]
        if law is None:
            return tokens
        return (*tokens, Law.of(law).draw(context.noise, Stream.TARGET, context.position(tree, end)))


def path_end(tree: TokenTree, node: int, law_after: LawAfter, coin: Coin, branches: int) -> Ended:
    """Where the path ends that goes on from an accepted node.

    Arithmetic alone: with all outcomes of the coins the law of the text can be enumerated.
    """
    ended = _in_branch(tree, node, 1.0, None, law_after, coin, branches)
    assert ended is not None, "the node that judging begins at stands"
    return ended


def _in_branch(
    tree: TokenTree,
    node: int,
    weight: float,
    draw_at: tuple[int, int] | None,
    law_after: LawAfter,
    coin: Coin,
    branches: int,
) -> Ended | None:
    """Where the path ends in the branch of a node; None where it does not.

    Args:
        weight: the probability with which it does.
        draw_at: the node's parent, and the place of its draw; None where the node stands already.
    """
    p, draws = law_after(node), tree.draws(node)
    if p is None:
        return Ended(node, None) if draw_at is None or coin(*draw_at, weight) else None
    left, judged = Standing(weight, p), 0
    tried: set[int] = set()
    for index, draw, g in itertools.islice(draw_laws(draws, p), 0 if _mixed(draws) else branches):
        chance, judged = left.chance(g, draw.guess.token), index + 1
        if draw.child not in tried and chance > 0.0:  # nothing is left of a refused token
            tried.add(draw.child)
            ended = _in_branch(tree, draw.child, chance, (node, index), law_after, coin, branches)
            if ended is not None:
                return ended
        left = left.without(g)
    if not (draw_at is None or coin(*draw_at, left.weight)):
        return None
    law = left.law
    for trial in trials(law, draws, skip=judged):
        if coin(node, trial.index, trial.chance):
            return Ended(draws[trial.index].child, None)
        law = trial.left
    return Ended(node, law)


def _mixed(draws: Sequence[Draw]) -> bool:
    """Whether points stand beside sampled draws."""
    return len({draw.guess.kind is DrawKind.POINT for draw in draws}) > 1


class Block(BranchRule):
    """The first draws below each other are a block; it stands as far as the last node whose coin says yes.

    The chance of the whole block is the product of its ratios p / q, cut at 1 after each. On chains no exact rule of
    this kind accepts more, and `multi_step`, which judges token by token, never does. In a tree the further draws of
    the node at which a block ends are tried one by one against what the block left there, as `multi_step` does; the
    first that is accepted begins a block of its own.

    Reference: Sun et al., Block Verification Accelerates Speculative Decoding, arXiv:2403.10444. Differs: published for
    chains of one length; here they may end anywhere, also because of their tokens, and have siblings.
    """

    wanted = DrawKind.IID
    branches = 1


class Traversal(BranchRule):
    """Try the branches of a node in turn, each from its leaves up; where all are refused, the node itself.

    With one draw per node it is `block`. In the mean over trees of one shape it accepted at least as much as
    `recursive` wherever both were computed; of a single tree it may accept less.

    Reference: Weng et al., Traversal Verification for Speculative Tree Decoding, arXiv:2505.12398. Differs: independent
    draws are judged too, in the same way; a node that was dropped in the pass is a leaf, and its token the bonus.
    """

    wanted = DrawKind.WOR
