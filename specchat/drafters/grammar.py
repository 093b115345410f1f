"""Spans that a constraint forces, as guesses; and any other drafter without the guesses that it forbids."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specchat.core.budget import Budget
from specchat.core.compiled_guessing import GrowthPlan
from specchat.core.constraint import MOST_FORCED, MOST_NODES, Constraint
from specchat.core.context import Context
from specchat.core.seams import Drafter, Proposal
from specchat.core.tree import ROOT, DrawKind, Guess, TokenTree
from specchat.drafters import GRAMMAR
from specchat.drafters.combine import MemberGroup
from specchat.drafters.parts import Parts
from specchat.registry import NoOptions

_FAR = 6
"""Behind so many forced tokens no drafter is asked: it has not seen what the target makes of them."""

_LIKELY = math.log(0.95)
"""What the last token of forced text claims: what follows may become a part of it."""


class Grammar(Drafter):
    """For each node the token that goes on with the text that must follow, as the target's tokenizer writes it.

    Without a constraint, and where several texts may follow, it has no guess.

    Reference: Lundberg et al., Guidance (2023), whose token fast-forwarding emits such spans; here they are guesses,
    because the target may write the last token of forced text otherwise.
    """

    def __init__(self, options: NoOptions, parts: Parts) -> None:
        """Nothing is learnt; parts are not needed."""

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        """(F,) for each node one guess, or none."""
        constraint = context.constraint
        if constraint is None:
            return [()] * len(frontier)
        return [_forced_guesses(constraint, tree.path_tokens(node), context)[:1] for node in frontier]


def _forced_guesses(constraint: Constraint, path: Sequence[int], context: Context) -> list[Guess]:
    """The tokens of the text that must follow this path; where rules weigh q, as far as they are certain."""
    certain = len(constraint.forced(path))
    tokens = constraint.forced(path) if context.wants_q else constraint.following(path)
    return [
        Guess(token, logprob=0.0 if place < certain else _LIKELY, proposer=GRAMMAR)
        for place, token in enumerate(tokens[:MOST_FORCED])
    ]


def with_forced_room(budget: Budget, constraint: Constraint) -> Budget:
    """The budget with room for the text that must follow the root, up to `MOST_FORCED` tokens of it.

    Trees end at a depth, and at a number of nodes, because guesses become unlikely with it. Forced ones do not, and a
    row costs a small part of a pass.
    """
    forced = min(len(constraint.following(())), MOST_FORCED) if budget.nodes else 0
    if not forced:
        return budget
    prices = budget.prices and (*budget.prices[:1] * forced, *budget.prices)
    return dataclasses.replace(
        budget, nodes=min(budget.nodes + forced, MOST_NODES), depth=budget.depth + forced, prices=prices
    )


def fitted(tree: TokenTree, constraint: Constraint, context: Context, budget: Budget) -> TokenTree:
    """The frozen tree without what is forbidden, and with the text that must follow the root and its guesses.

    A point whose token and forced text the tokenizer would write with other tokens gives way to those. With the forced
    text there may be nearly twice as many nodes as the budget has, up to `MOST_NODES`.
    """
    return _Fitting(tree, constraint, context, budget).tree


class _Fitting:
    def __init__(self, tree: TokenTree, constraint: Constraint, context: Context, budget: Budget) -> None:
        self._constraint, self._budget = constraint, budget
        self._grown = TokenTree(tree.tokens[ROOT], context.vocab_size)
        self._reach, self._follows = {ROOT: 1.0}, dict[int, int]()
        self._room = min(2 * budget.nodes - 1, MOST_NODES) - tree.drafted
        self._follow(ROOT, _forced_guesses(constraint, (), context) if self._room > 0 else [])
        place = {ROOT: ROOT}
        for parent in range(len(tree)):
            for draw in tree.draws(parent) if parent in place else ():
                child = self._child(place[parent], draw.guess, context.wants_q)
                if child is not None:
                    place[draw.child] = child
        self.tree = self._grown.freeze()

    def _child(self, node: int, guess: Guess, wants_q: bool) -> int | None:
        """The node of a guess; None where it is forbidden, or the same text has other tokens."""
        path = self._grown.path_tokens(node)
        if not self._constraint.allows(path, guess.token):
            self._constraint.note_refused(path, guess.token, guess.proposer)
            return None
        if wants_q or guess.kind is not DrawKind.POINT:
            return self._add(node, guess)
        if self._follows.get(node, guess.token) != guess.token:
            return None
        first, *rest = self._constraint.as_written(path, guess.token)
        child = self._add(node, guess._replace(token=first))
        self._follow(child, [Guess(token, logprob=0.0, proposer=GRAMMAR) for token in rest])
        return child if first == guess.token else None

    def _follow(self, node: int, guesses: Sequence[Guess]) -> None:
        """Put forced text below a node, as far as there is room and rows are worth it."""
        for guess in guesses:
            if self._grown.child(node, guess.token) is None:
                if self._room <= 0 or self._reach[node] < min(1.0, self._budget.price(len(self._grown))):
                    return
                self._room -= 1
            self._follows[node] = guess.token
            node = self._add(node, guess)

    def _add(self, node: int, guess: Guess) -> int:
        child = self._grown.child(node, guess.token)
        if child is None or guess.kind is not DrawKind.POINT:
            child = self._grown.add(node, guess)
        chance = 0.5 if guess.logprob is None else math.exp(guess.logprob)
        self._reach[child] = max(self._reach.get(child, 0.0), self._reach[node] * chance)
        return child


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
        forced = {node: _forced_guesses(constraint, path, context)[:1] for node, path in paths.items()}
        open_ = [node for node in frontier if not forced[node]]
        said = self._drafter.propose(tree, open_, 2 * width + 2, context) if open_ else ()
        asked = dict(zip(open_, said, strict=True))
        found: list[Sequence[Guess]] = []
        for node in frontier:
            if forced[node]:
                found.append(forced[node])
                continue
            path, guesses = paths[node], [*asked[node]]
            for guess in guesses[:width]:
                if 0 <= guess.token < context.vocab_size and not constraint.allows(path, guess.token):
                    constraint.note_refused(path, guess.token, guess.proposer)
            if not banned and all(guess.q is None for guess in guesses):
                fits = (guess for guess in guesses if constraint.allows(path, guess.token))
                found.append([*itertools.islice(fits, width)])
                continue
            mask = constraint.mask(path)
            if banned:
                mask = mask.copy()
                mask[banned] = False
            found.append(allowed(guesses, mask, width, context.vocab_size))
        return found

    def grow_at_once(self, context: Context, plan: GrowthPlan) -> TokenTree | None:
        """The tree of the drafter's guesses; `fitted` drops those that are forbidden. Behind long spans there are none.

        None where a short span is forced first, or all guesses after the root are forbidden: then the drafter is asked
        level by level, and for more.
        """
        constraint = context.constraint
        if constraint is None or context.wants_q or context.sampling.banned:
            return None
        if forced := constraint.following(()):
            return TokenTree(context.root, context.vocab_size).freeze() if len(forced) >= _FAR else None
        tree = self._drafter.grow_at_once(context, plan)
        if tree is None or not any(constraint.allows((), draw.guess.token) for draw in tree.draws(ROOT)):
            return None
        return tree

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
