"""Spans that a constraint forces, as guesses; and any other drafter without the guesses that it forbids."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specchat.core.constraint import Constraint
from specchat.core.context import Context
from specchat.core.seams import Drafter, Proposal
from specchat.core.tree import ROOT, DrawKind, Guess, TokenTree
from specchat.drafters import GRAMMAR
from specchat.drafters.combine import MemberGroup
from specchat.drafters.parts import Parts
from specchat.registry import NoOptions

_LIKELY = math.log(0.95)
"""What a forced token claims where others may write the same text."""


class Grammar(Drafter):
    """For each node the token that goes on with the text that must follow, as the target's tokenizer writes it.

    Without a constraint, and where several texts may follow, it has no guess. Forced text is tokenised as far as its
    last token is certain whatever follows.

    Reference: Lundberg et al., Guidance (2023), whose token fast-forwarding emits such spans; here they are guesses,
    because the target may write the same text with other tokens.
    """

    def __init__(self, options: NoOptions, parts: Parts) -> None:
        """Nothing is learnt; parts are not needed."""

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        """(F,) for each node one guess, or none."""
        constraint = context.constraint
        if constraint is None:
            return [()] * len(frontier)
        return [forced_guess(constraint, tree.path_tokens(node)) for node in frontier]


def forced_guess(constraint: Constraint, path: Sequence[int]) -> Sequence[Guess]:
    """The token that goes on with the forced text behind this path; none where none is forced."""
    mask = constraint.mask(path)
    if np.count_nonzero(mask) == 1:
        return (Guess(int(mask.argmax()), logprob=0.0, proposer=GRAMMAR),)
    forced = constraint.forced(path)
    if not forced or not mask[forced[0]]:
        return ()
    return (Guess(forced[0], logprob=_LIKELY, proposer=GRAMMAR),)


def with_forced(tree: TokenTree, constraint: Constraint, nodes: int, vocab_size: int) -> TokenTree:
    """The frozen tree with more of the text that must follow the root.

    A tree ends at a depth, and at a number of nodes, because guesses become unlikely with it. Forced ones do not, and a
    row costs a small part of a pass, so they may be nearly twice as many.

    Args:
        nodes: that a round's budget has.
    """
    most = 2 * nodes - 1
    node, path = ROOT, list[int]()
    while (guesses := forced_guess(constraint, path)) and (child := tree.child(node, guesses[0].token)) is not None:
        node = child
        path.append(guesses[0].token)
    if not guesses or len(tree) > most or any(True for _ in tree.draws(node)):
        return tree
    grown, place = TokenTree(tree.tokens[ROOT], vocab_size), {ROOT: ROOT}
    for parent in range(len(tree)):
        for draw in tree.draws(parent):
            place[draw.child] = grown.add(place[parent], draw.guess)
    node = place[node]
    while guesses and len(grown) <= most:
        node = grown.add(node, guesses[0])
        path.append(guesses[0].token)
        guesses = forced_guess(constraint, path)
    return grown.freeze()


class WithGrammar(MemberGroup):
    """A drafter under a constraint, a ban or both: forced tokens come first, and its guesses lose what is forbidden.

    Banned are tokens whose bias leaves them no chance; see `Sampling.banned`.

    It is asked where no token is forced, for more guesses than have a place, since some will go. Draws keep their law:
    whether a draw stays depends on its token only in that this is allowed, and given that, it is distributed as q
    without the forbidden tokens, which is the q that it carries from here on. That holds for independent draws, and for
    draws without replacement among the allowed ones.
    """

    def __init__(self, drafter: Drafter) -> None:
        super().__init__([drafter])
        self._drafter = drafter

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        """(F,) guesses that may follow each node."""
        constraint, banned = context.constraint, [*context.sampling.banned]
        if constraint is None:
            mask = np.ones(context.vocab_size, dtype=np.bool_)
            mask[banned] = False
            said = self._drafter.propose(tree, frontier, 2 * width + 2, context)
            return [allowed(guesses, mask, width, context.vocab_size) for guesses in said]
        paths = {node: tree.path_tokens(node) for node in frontier}
        forced = {node: forced_guess(constraint, path) for node, path in paths.items()}
        open_ = [node for node in frontier if not forced[node]]
        said = self._drafter.propose(tree, open_, 2 * width + 2, context) if open_ else ()
        asked = dict(zip(open_, said, strict=True))
        found: list[Sequence[Guess]] = []
        for node in frontier:
            if forced[node]:
                found.append(forced[node])
                continue
            mask = constraint.mask(paths[node])
            for guess in asked[node][:width]:
                if 0 <= guess.token < context.vocab_size and not mask[guess.token]:
                    constraint.note_refused(paths[node], guess.token, guess.proposer)
            if banned:
                mask = mask.copy()
                mask[banned] = False
            found.append(allowed(asked[node], mask, width, context.vocab_size))
        return found

    def close(self) -> None:
        """Nothing: the drafter outlives the reply."""


def allowed(
    guesses: Sequence[Guess], mask: np.ndarray[Any, np.dtype[np.bool_]], width: int, vocab_size: int
) -> list[Guess]:
    """The first `width` of the guesses that a mask allows, with their laws under the mask.

    Args:
        mask: (V,).
    """
    found: list[Guess] = []
    laws: dict[int, Tensor] = {}  # draws of one drafter share one tensor
    for guess in guesses:
        if len(found) == width:
            break
        if not (0 <= guess.token < vocab_size and mask[guess.token]):
            continue
        if guess.q is not None:
            q = laws.get(id(guess.q))
            if q is None:
                q = laws[id(guess.q)] = _without_forbidden(guess.q, mask)
            drawn = guess.kind is not DrawKind.POINT
            logprob = math.log(max(float(q[guess.token]), 1e-300)) if drawn else guess.logprob
            guess = guess._replace(q=q, logprob=logprob)
        found.append(guess)
    return found


def _without_forbidden(q: Tensor, mask: np.ndarray[Any, np.dtype[np.bool_]]) -> Tensor:
    """(V,) q among the allowed tokens; q itself where it gives them nothing."""
    kept = torch.where(torch.from_numpy(mask).to(q.device), q, torch.zeros_like(q))
    mass = float(kept.sum())
    return kept / mass if mass > 0.0 else q
