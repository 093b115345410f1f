"""Behind which nodes of a tree masks stand: where they are worth most in the long run, and as many as pay."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

import numpy as np

from specchat.core.tree import ROOT, TokenTree
from specchat.indexes.running_estimates import RecentLinearFit

_UNKNOWN = 0.5
"""The chance of a guess whose drafter says none."""

_LEAST = 1e-6

_HABIT, _MEMORY = 8.0, 0.99
"""Weight of what is expected of a state at first, in rounds; and the share of its weight that a round keeps with each
that follows."""


class MaskStates:
    """What it is worth that the node accepted last carried so many masks: the state in which the next round begins.

    States follow one another as a Markov chain, and a round's tokens are its reward. With ρ the steady state's tokens a
    round, the worth h of a state solves h + ρ = r + P h. So a mask counts for the guess it makes, and also for the
    masks that can stand behind that guess.
    """

    def __init__(self, masks: int) -> None:
        self._moves = np.zeros((masks + 1, masks + 1))
        self._tokens = np.zeros(masks + 1)

    def move(self, before: int, after: int, tokens: int) -> None:
        """A round began in one state, emitted so many tokens, and ended in another state."""
        self._moves *= _MEMORY
        self._tokens *= _MEMORY
        self._moves[before, after] += 1.0
        self._tokens[before] += tokens

    def gains(self, rates: Sequence[float]) -> list[float]:
        """For each mask what it adds to the worth of its node's state, never rising; in tokens.

        Args:
            rates: how often guesses of each mask are right, where those of the masks before it were: what a state's
                round emits, as long as there were few such rounds.
        """
        visits = self._moves.sum(axis=1)
        expected = 1.0 + np.concatenate([[0.0], np.cumsum(np.cumprod(rates))])
        reward = (self._tokens + _HABIT * expected) / (visits + _HABIT)
        usual = (self._moves.sum(axis=0) + 1.0) / (visits.sum() + len(visits))
        chances = (self._moves + _HABIT * usual) / (visits + _HABIT)[:, None]
        system = np.eye(len(visits)) - chances
        system[:, 0] = 1.0  # h of the first state is 0, and in its place stands ρ
        worth = np.linalg.solve(system, reward)
        worth[0] = 0.0
        gains: list[float] = np.minimum.accumulate(np.diff(worth).clip(min=0.0)).tolist()
        return gains


class RowPrice:
    """What one more row of the target's pass costs, in tokens that could be written in its time: measured, not told."""

    def __init__(self) -> None:
        self._times = RecentLinearFit()
        self._tokens = self._seconds = 0.0

    def add(self, rows: float, verify_s: float, round_s: float, tokens: int) -> None:
        self._times.add(rows, verify_s)
        self._tokens = _MEMORY * self._tokens + tokens
        self._seconds = _MEMORY * self._seconds + round_s

    @property
    def tokens(self) -> float | None:
        """None as long as passes had much the same number of rows."""
        known = self._times.known and self._seconds > 0.0
        return self._times.slope * self._tokens / self._seconds if known else None


def likeliest_places(tree: TokenTree, gains: Sequence[float], rows: int, price: float = 0.0) -> dict[int, int]:
    """Node → how many masks stand behind it; nodes without any are left out.

    The state of a round is how many masks the node carried that was accepted last: so many tokens the next tree can
    guess ahead. A mask's worth is the chance that its node is the last one, times what it adds to the worth of the
    node's state, and a node's masks are worth less one after the other. So taking the best masks until the rows are
    used up, or until none is worth its price, is the best choice for this tree.

    Args:
        gains: what each mask adds to the worth of a state, never rising.
        rows: the most masks in all.
        price: what a mask costs, in what gains are counted in.
    """
    last = last_accepted(tree)
    waiting = [(-chance * gains[0], node, 0) for node, chance in enumerate(last)] if gains else []
    heapq.heapify(waiting)
    placed: dict[int, int] = {}
    while waiting and rows > 0:
        worth, node, number = heapq.heappop(waiting)
        if -worth < price:
            break
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
