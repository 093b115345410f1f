"""Test-only tree transforms, early pruning, and a drafter that alternates."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from torch import Tensor

from specchat.core.budget import Budget
from specchat.core.context import Context
from specchat.core.round import Round
from specchat.core.seams import Controller, Drafter, TreePolicy
from specchat.core.tree import ROOT, TokenTree

TreeTransform = Callable[[TokenTree], TokenTree]
"""Tree → frozen tree."""


class Transformed(TreePolicy):
    """A tree policy whose tree goes through a transform before it is read."""

    def __init__(self, policy: TreePolicy, transform: TreeTransform) -> None:
        self._policy, self._transform = policy, transform

    def observe(self, round: Round) -> None:
        self._policy.observe(round)

    def grow(self, drafter: Drafter, context: Context, budget: Budget) -> TokenTree:
        return self._transform(self._policy.grow(drafter, context, budget))


def merge(first: TokenTree, second: TokenTree, vocab_size: int) -> TokenTree:
    """Two trees below one root as one trie: shared prefixes share nodes and keep both draws."""
    assert first.tokens[ROOT] == second.tokens[ROOT], "both grow from the same root"
    merged = TokenTree(first.tokens[ROOT], vocab_size)
    for tree in (first, second):
        place = {ROOT: ROOT}
        for node in range(len(tree)):
            for draw in tree.draws(node):
                place[draw.child] = merged.add(place[node], draw.guess)
    return merged.freeze()


def backwards(vocab_size: int) -> TreeTransform:
    """A transform that renumbers every node: the last child comes first."""

    def transform(tree: TokenTree) -> TokenTree:
        turned = TokenTree(tree.tokens[ROOT], vocab_size)

        def copy(node: int, to: int) -> None:
            for draw in reversed(tree.draws(node)):
                copy(draw.child, turned.add(to, draw.guess))

        copy(ROOT, ROOT)
        return turned.freeze()

    return transform


def only_first(vocab_size: int) -> TreeTransform:
    """A transform that prunes: of every node only the first child stays."""

    def transform(tree: TokenTree) -> TokenTree:
        thin, node, to = TokenTree(tree.tokens[ROOT], vocab_size), ROOT, ROOT
        while draws := tree.draws(node):
            to, node = thin.add(to, draws[0].guess), draws[0].child
        return thin.freeze()

    return transform


class Pruner:
    """After one layer, drops the nodes a function chooses; remembers what it saw."""

    def __init__(self, layer: int, drop: Callable[[Sequence[int]], Collection[int]]) -> None:
        self._layer, self._drop = layer, drop
        self.dropped: list[set[int]] = []

    def __call__(self, layer: int, hidden: Tensor, nodes: Sequence[int]) -> Collection[int] | None:
        assert hidden.shape[0] == len(nodes), "one row per node"
        if layer != self._layer:
            return None
        gone = set(self._drop(nodes))
        self.dropped.append(gone)
        return [node for node in nodes if node not in gone]


class Alternating(Controller):
    """A controller that plans its budgets in turn."""

    def __init__(self, *budgets: Budget) -> None:
        self._budgets = budgets
        self.seen: list[int] = []

    def plan(self, context: Context) -> Budget:
        return self._budgets[context.round % len(self._budgets)]

    def observe(self, round: Round) -> None:
        self.seen.append(round.accepted)
