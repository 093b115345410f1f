"""Policies and rules together keep the target's law: all draws that a policy asks for, and all coins, enumerated.

With and without prices of nodes and of passes, as the default controller sets them.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache

import pytest
import torch
from contracts.enumerated import Enumerated
from contracts.kit import context_for, make_policy, make_rule

from specchat.acceptance import ACCEPTANCE_RULES
from specchat.bench.rule_table import ENDS
from specchat.core.budget import Budget
from specchat.core.sampling import Sampling
from specchat.core.seams import Drafter
from specchat.core.tree import ROOT, DrawKind, Guess, TokenTree
from specchat.decoding.combinations import keeps_draws
from specchat.trees import TREE_POLICIES

KINDS = {"iid": DrawKind.IID, "wor": DrawKind.WOR}
BUDGETS = {
    "free": Budget(4, 2, 2),
    "priced": Budget(4, 2, 2, prices=(0.1, 0.3, 0.4, 0.5), pass_price=0.3),
}
ASKED = {"confidence": {"fallback": 0.0, "alpha": 0.0}}
"""Options with which a policy drafts from so flat a law."""

OWN_NOISE = {"rsd_s"}
"""Policies with noise of their own, which cannot be enumerated: see test_law.py."""

KEPT = [
    pytest.param(name, kind, id=f"{name}-{kind.value}")
    for name, method in TREE_POLICIES.items()
    for kind in KINDS.values()
    if keeps_draws(method, kind) and name not in OWN_NOISE
]


@cache
def law(name, path):
    """A fixed law of three tokens, or of two in deep trees; far from flat, so that prices decide."""
    generator = torch.Generator().manual_seed(hash((ord(name[0]), *path)) % 2**31)
    return torch.softmax(1.5 * torch.randn(3, generator=generator, dtype=torch.float64), dim=0)


@cache
def law_of_two(name, path):
    two = law(name, path)[:2]
    return two / two.sum()


class Told(Drafter):
    """Draws as it is told, then the first token that is possible; every other outcome is noted as unseen."""

    passes = 0

    def __init__(self, laws, told, unseen):
        self.probability, self._laws, self._told, self._unseen, self._drawn = 1.0, laws, told, unseen, ()

    def propose(self, tree, frontier, width, context):
        self.passes += 1
        return [self._draws(tuple(tree.path_tokens(node)), width, context.wanted) for node in frontier]

    def _draws(self, path, width, kind):
        q, found = self._laws.q("q", path), []
        for _ in range(width):
            g = q.clone()
            if kind is DrawKind.WOR:
                g[[guess.token for guess in found]] = 0.0
            if float(g.sum()) > 0.0:
                token = self._draw(g / g.sum())
                found.append(Guess(token, kind, q, float(q[token].log()), "q"))
        return found

    def _draw(self, g):
        at, possible = len(self._drawn), g.nonzero().flatten().tolist()
        token = self._told[at] if at < len(self._told) else possible[0]
        if at >= len(self._told):
            self._unseen += [(*self._drawn, other) for other in possible[1:]]
        self._drawn = (*self._drawn, token)
        self.probability *= float(g[token])
        return token


def trees(laws, policy, kind, budget):
    """Every tree that a policy grows, with its probability."""
    found, unseen = defaultdict(float), [()]
    while unseen:
        drafter = Told(laws, unseen.pop(), unseen)
        context = context_for(Sampling(temperature=1.0), 7, laws.vocab_size, [0])
        context.wanted, context.budget = kind, budget
        tree = policy().grow(drafter, context, budget)
        found[tuple((at, draw.guess.token) for at in range(len(tree)) for draw in tree.draws(at))] += (
            drafter.probability
        )
    for draws, probability in found.items():
        tree = TokenTree(0, laws.vocab_size)
        for parent, token in draws:
            q = laws.q("q", tuple(tree.path_tokens(parent)))
            tree.add(parent, Guess(token, kind, q, proposer="q"))
        yield probability, tree.freeze()


def error(laws, grown, rule):
    found = sum(probability * laws.text_law(tree, ENDS[rule]) for probability, tree in grown)
    return float((found - laws.wanted()).abs().max())


THREE = Enumerated(3, 3, lambda path: law("p", path), law)
TWO = Enumerated(2, 4, lambda path: law_of_two("p", path), law_of_two)


@pytest.mark.parametrize(("name", "kind"), KEPT)
def test_under_every_policy_and_under_prices_texts_are_distributed_as_the_targets(name, kind):
    for budget in BUDGETS.values():
        grown = list(trees(THREE, lambda: make_policy(TREE_POLICIES[name], **ASKED.get(name, {})), kind, budget))
        assert sum(probability for probability, _ in grown) == pytest.approx(1.0, abs=1e-9)
        for rule in ENDS:
            assert error(THREE, grown, rule) < 1e-9, (rule, budget)


@pytest.mark.parametrize("name", ["best_first", "specexec", "sequoia"])
def test_deeper_trees_whose_branches_compete_for_rows_keep_the_law(name):
    """With draws without replacement: what stands below one branch decides whether another goes on."""
    sizes = set()
    for budget in (Budget(5, 3, 2), Budget(5, 3, 2, prices=(0.1, 0.15, 0.2, 0.25, 0.3), pass_price=0.2)):
        grown = list(trees(TWO, lambda: make_policy(TREE_POLICIES[name]), DrawKind.WOR, budget))
        sizes |= {(len(tree), max(tree.depths)) for _, tree in grown}
        for rule in ENDS:
            assert error(TWO, grown, rule) < 1e-9, (rule, budget)
    assert len(sizes) > 1


@pytest.mark.parametrize("rule", ENDS)
def test_a_price_that_looks_at_a_draws_own_token_is_caught(rule):
    kind = make_rule(ACCEPTANCE_RULES[rule]).wanted
    kept = []
    for probability, tree in trees(THREE, lambda: make_policy(TREE_POLICIES["expansion"]), kind, BUDGETS["free"]):
        paying, place = TokenTree(0, 3), {ROOT: ROOT}
        for parent in range(len(tree)):
            for draw in tree.draws(parent) if parent in place else ():
                if float(draw.guess.q[draw.guess.token]) >= 0.3:
                    place[draw.child] = paying.add(place[parent], draw.guess)
        kept.append((probability, paying.freeze()))
    assert error(THREE, kept, rule) > 1e-3
