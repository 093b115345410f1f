"""Behind which nodes of a tree masks stand: those first after which they probably lead furthest."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from specchat.core.tree import ROOT, TokenTree

_UNKNOWN = 0.5
"""The chance of a guess whose drafter says none."""

_LEAST = 1e-6


def likeliest_places(tree: TokenTree, rates: Sequence[float], rows: int) -> dict[int, int]:
    """Node → how many masks stand behind it; nodes without any are left out.

    The state of a round is how many masks the node carried that was accepted last: so many tokens the next tree can
    guess ahead. A mask's worth is the chance that its node is the last one, times what its guess adds to what is
    accepted then, and a node's masks are worth less one after the other. So taking the best masks until the rows are
    used up is the best choice for this tree.

    Args:
        rates: how often guesses of each mask are right, where those of the masks before it were.
        rows: the most masks in all.
    """
    last = last_accepted(tree)
    gains = [math.prod(rates[: number + 1]) for number in range(len(rates))]
    waiting = [(-chance * gains[0], node, 0) for node, chance in enumerate(last)] if gains else []
    heapq.heapify(waiting)
    placed: dict[int, int] = {}
    while waiting and rows > 0:
        _, node, number = heapq.heappop(waiting)
        placed[node], rows = number + 1, rows - 1
        if number + 1 < len(gains):
            heapq.heappush(waiting, (-last[node] * gains[number + 1], node, number + 1))
    return placed


def last_of_likeliest(tree: TokenTree, masks: int) -> dict[int, int]:
    """The same with all masks behind the end of the likeliest path alone."""
    node = ROOT
    while children := tree.children(node):
        chances = _chances(tree, node)
        node = max(children, key=chances.__getitem__)
    return {node: masks} if masks else {}


def last_accepted(tree: TokenTree) -> list[float]:
    """(N,) how likely each node is the last that is accepted, by what the guesses claim; they add up to 1."""
    reached, last = [0.0] * len(tree), [0.0] * len(tree)
    reached[ROOT] = 1.0
    for node in range(len(tree)):
        chances = _chances(tree, node)
        for child, chance in chances.items():
            reached[child] = reached[node] * chance
        last[node] = reached[node] * (1.0 - math.fsum(chances.values()))
    return last


def _chances(tree: TokenTree, node: int) -> dict[int, float]:
    """The chance of each child of a node; together they leave some for none of them."""
    chances: dict[int, float] = {}
    for child, guess in tree.draws(node):
        said = _UNKNOWN if guess.logprob is None else min(1.0, math.exp(guess.logprob))
        chances[child] = max(chances.get(child, _LEAST), said)
    total = math.fsum(chances.values())
    most = 1.0 - _LEAST
    return {child: chance * most / total for child, chance in chances.items()} if total > most else chances
