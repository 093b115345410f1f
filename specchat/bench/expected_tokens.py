"""Tokens that a round over a given tree emits in the mean, computed from the target's and the drafter's laws."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor

from specchat.acceptance.branches import ALL, Ended, LawAfter, path_end
from specchat.acceptance.recursion import trials
from specchat.core.tree import ROOT, TokenTree

Laws = Callable[[int], Tensor]
"""Node → (V,) float64, the target's law after it."""

Ends = Callable[[TokenTree, int, LawAfter], Iterator[tuple[float, Ended]]]
"""(tree, accepted node, laws) → each end of the path below the node that a rule may find, with its probability."""


def followed(tree: TokenTree, laws: Laws, node: int = ROOT) -> float:
    """Under `follow`, whose walk goes to a child with the target's probability of its token."""
    children, found = tree.children(node), 1.0
    p = laws(node)[[tree.tokens[child] for child in children]].tolist() if children else ()
    for chance, child in zip(p, children, strict=True):
        found += chance * followed(tree, laws, child)
    return found


def judged(tree: TokenTree, laws: Laws, ends: Ends, node: int = ROOT) -> float:
    """Under a rule that finds these ends, for a tree of sampled draws alone."""
    found = 0.0
    for probability, (end, law) in ends(tree, node, laws):
        below = tree.depths[end] - tree.depths[node]
        found += probability * (below + (1.0 if law is not None else judged(tree, laws, ends, end)))
    return found


def ends_one_by_one(tree: TokenTree, node: int, law_after: LawAfter) -> Iterator[tuple[float, Ended]]:
    """Under `multi_step` and `recursive`: the first draw that is accepted, where judging begins anew, or the node."""
    left, draws, reached = law_after(node), tree.draws(node), 1.0
    for trial in trials(left, draws) if left is not None else ():
        if trial.chance > 0.0:
            yield reached * trial.chance, Ended(draws[trial.index].child, None)
        reached, left = reached * (1.0 - trial.chance), trial.left
    if reached > 0.0:
        yield reached, Ended(node, left)


def ends_of_blocks(tree: TokenTree, node: int, law_after: LawAfter) -> Iterator[tuple[float, Ended]]:
    """Under `block`."""
    return ends_of_branches(tree, node, law_after, branches=1)


def ends_of_branches(
    tree: TokenTree, node: int, law_after: LawAfter, branches: int = ALL
) -> Iterator[tuple[float, Ended]]:
    """Under `traversal`: all outcomes of the coins, enumerated."""
    unseen: list[tuple[bool, ...]] = [()]
    while unseen:
        coins = _Coins(unseen.pop(), unseen)
        ended = path_end(tree, node, law_after, coins, branches)
        yield coins.probability, ended


ENDS: dict[str, Ends] = {
    "multi_step": ends_one_by_one,
    "recursive": ends_one_by_one,
    "block": ends_of_blocks,
    "traversal": ends_of_branches,
}
"""By the rule's name."""


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
