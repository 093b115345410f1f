"""A node stands in a tree only if it is likely enough to be accepted for its price, whatever the policy and drafter."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Sequence
from functools import cache

import pytest
from contracts.covering import covering
from contracts.kit import (
    PROMPT,
    Always,
    context_for,
    every,
    make_drafter,
    make_policy,
    make_rule,
    scripted_draft,
    scripted_target,
    speak,
)
from contracts.proposing import Proposing, counting_up
from rows import each_row

from specchat.acceptance import ACCEPTANCE_RULES
from specchat.core.budget import Budget
from specchat.core.context import Context
from specchat.core.sampling import Sampling
from specchat.core.seams import Drafter
from specchat.core.tree import ROOT, DrawKind, Guess, TokenTree
from specchat.decoding.speculate import Speculator
from specchat.drafters import DRAFTERS
from specchat.registry import Method
from specchat.trees import TREE_POLICIES
from specchat.trees.growth import point_probability, probability_once_drawn


def acceptance_probabilities(guesses: Sequence[Guess]) -> list[float]:
    """For each guess at one node, how likely it is to stand when its parent does.

    A point counts with the probability its drafter gives it; a drafter that gives none is taken to be right half
    of the time with its first guess, a quarter with its second, and so on. A sampled draw counts with the share
    that the draws before it leave: that is known before it is drawn, so nothing decided by it looks at its token.
    """
    found: list[float] = []
    left = 1.0
    for rank, guess in enumerate(guesses):
        if guess.kind is DrawKind.POINT:
            found.append(point_probability(guess, rank))
        else:
            found.append(left)
            left *= 1.0 - probability_once_drawn(guesses, rank)
    return found


def worths(tree: TokenTree) -> list[float]:
    """What every place of a tree is worth, highest first: the product of the acceptance_probabilities down to it."""
    below, found = {ROOT: 1.0}, []
    for parent in range(len(tree)):
        draws = tree.draws(parent)
        guesses = [draw.guess for draw in draws]
        points: set[int] = set()
        for rank, (draw, chance) in enumerate(zip(draws, acceptance_probabilities(guesses), strict=True)):
            sampled = draw.guess.kind is not DrawKind.POINT
            if draw.child in points and not sampled:
                continue
            points |= set() if sampled else {draw.child}
            worth = below[parent] * chance
            found.append(worth)
            after = below[parent] * chance * probability_once_drawn(guesses, rank) if sampled else worth
            below[draw.child] = max(after, below.get(draw.child, 0.0))
    return sorted(found, reverse=True)


def taught_drafter(drafter: Method) -> tuple[Drafter, Context]:
    """A drafter that has seen a repetitive text and some rounds of it, and where the text stands: the same for all."""
    made, context = _taught_drafter(drafter.name)
    return made, copy.copy(context)


@cache
def _taught_drafter(name: str) -> tuple[Drafter, Context]:
    drafter = DRAFTERS[name]
    rows = {"rows": 32} if drafter.in_target_pass else {}  # enough for masks behind every node
    made, context = make_drafter(drafter, scripted_draft(), **rows), context_for(prompt=PROMPT * 4)
    parts = (scripted_target(), made, make_policy(TREE_POLICIES["chain"]), make_rule(ACCEPTANCE_RULES["follow"]))
    speak(Speculator(*parts, Always(Budget(4, 4, 1))), 40, context)
    return made, context


WIDE = Budget(24, 5, 4)
OPEN = {"confidence": {"fallback": 0.0, "alpha": 0.0}}
"""Options with which a policy leaves out nothing on its own account, so that prices alone decide."""


@each_row(
    ("method", "drafter", "wanted"),
    covering(every(TREE_POLICIES), every(DRAFTERS), [pytest.param(kind, id=kind.value) for kind in DrawKind]),
)
def test_rising_prices_shrink_the_tree_to_nothing(method, drafter, wanted):
    made, context = taught_drafter(drafter)
    context.sampling, context.wanted = Sampling(temperature=0.8), wanted
    sizes = []
    for price in (0.0, 0.05, 0.3, 1.01):
        tree = make_policy(method, **OPEN.get(method.name, {})).grow(
            made, context, dataclasses.replace(WIDE, prices=(price,))
        )
        assert all(worth >= price for worth in worths(tree)), "no node below its price"
        sizes.append(tree.drafted)
    # Sampled draws differ with the number of their node, and with a price fewer nodes come before it.
    room = 1.0 if wanted is DrawKind.POINT else 1.25
    assert all(dearer <= room * cheaper for cheaper, dearer in itertools.pairwise(sizes))
    assert sizes[-1] == 0
    assert sizes[0] > 0 or drafter.name in ("none", "grammar"), "without a constraint"


@each_row(("method", "drafter"), covering(every(TREE_POLICIES), every(DRAFTERS)))
def test_every_node_pays_its_own_price(method, drafter):
    made, context = taught_drafter(drafter)
    prices = tuple(min(1.0, 0.02 * 1.3**node) for node in range(WIDE.nodes))
    tree = make_policy(method, **OPEN.get(method.name, {})).grow(
        made, context, dataclasses.replace(WIDE, prices=prices)
    )
    assert all(worth >= price for worth, price in zip(worths(tree), prices, strict=False))
    free = make_policy(method, **OPEN.get(method.name, {})).grow(made, context, WIDE)
    paying = all(worth >= price for worth, price in zip(worths(free), prices, strict=False))
    assert tree.drafted < free.drafted or paying, "the later nodes were too dear"


@pytest.mark.parametrize("method", every(TREE_POLICIES))
def test_a_guess_without_a_probability_pays_too(method):
    sizes = [
        make_policy(method, **OPEN.get(method.name, {}))
        .grow(Proposing(counting_up), context_for(), dataclasses.replace(WIDE, prices=(p,)))
        .drafted
        for p in (0.0, 0.1, 0.3, 0.6)
    ]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[1] < sizes[0]
    assert sizes[-1] == 0
