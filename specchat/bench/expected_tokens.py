"""Tokens that a round over a given tree emits in the mean, computed from the target's and the drafter's laws."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor

from specchat.acceptance.branches import ALL, Ended, path_end
from specchat.acceptance.recursion import trials
from specchat.core.tree import ROOT, TokenTree

Laws = Callable[[int], Tensor]
"""Node → (V,) float64, the target's law after it."""


def followed(tree: TokenTree, laws: Laws, node: int = ROOT) -> float:
    """Under `follow`, whose walk goes to a child with the target's probability of its token."""
    children = tree.children(node)
    p = laws(node)[[tree.tokens[child] for child in children]].tolist() if children else ()
    found = 1.0
    for chance, child in zip(p, children, strict=True):
        found += chance * followed(tree, laws, child)
    return found


def tried_one_by_one(tree: TokenTree, laws: Laws, node: int = ROOT) -> float:
    """Under `multi_step` or `recursive`, for a tree of sampled draws alone."""
    draws, found, reached = tree.draws(node), 1.0, 1.0
    for trial in trials(laws(node), draws) if draws else ():
        if trial.chance > 0.0:
            found += reached * trial.chance * tried_one_by_one(tree, laws, draws[trial.index].child)
        reached *= 1.0 - trial.chance
    return found


def judged_by_branch(tree: TokenTree, laws: Laws, branches: int = ALL, node: int = ROOT) -> float:
    """Under `traversal`, or `block` with 1 branch, for a tree of sampled draws alone."""
    found = 0.0
    for probability, (end, law) in possible_ends(tree, node, laws, branches):
        below = tree.depths[end] - tree.depths[node]
        found += probability * (below + (1.0 if law is not None else judged_by_branch(tree, laws, branches, end)))
    return found


def possible_ends(
    tree: TokenTree, node: int, law_after: Callable[[int], Tensor | None], branches: int = ALL
) -> Iterator[tuple[float, Ended]]:
    """Every end of the path below a node, with its probability: all outcomes of the coins, enumerated."""
    unseen: list[tuple[bool, ...]] = [()]
    while unseen:
        coins = _Coins(unseen.pop(), unseen)
        ended = path_end(tree, node, law_after, coins, branches)
        yield coins.probability, ended


class _Coins:
    """Coins that fall as they are told, then yes where they can; every other outcome is noted as unseen."""

    def __init__(self, told: tuple[bool, ...], unseen: list[tuple[bool, ...]]) -> None:
        self.probability = 1.0
        self._told, self._unseen = told, unseen
        self._fallen: list[bool] = []

    def __call__(self, parent: int, index: int, chance: float) -> bool:
        fallen, told = self._fallen, self._told
        yes = told[len(fallen)] if len(fallen) < len(told) else chance > 0.0
        if len(fallen) >= len(told) and 0.0 < chance < 1.0:
            self._unseen.append((*fallen, False))
        self.probability *= chance if yes else 1.0 - chance
        fallen.append(yes)
        return yes
