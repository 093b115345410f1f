"""Drafters made of one function, for tests that know what is to be guessed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from specchat.core.context import Context
from specchat.core.round import Round
from specchat.core.seams import Drafter
from specchat.core.tree import Guess, TokenTree


class Proposing(Drafter):
    """A drafter made of one function (tree, node, width, context) → guesses; remembers what it was asked."""

    passes = 0

    def __init__(self, guess: Callable[[TokenTree, int, int, Context], Sequence[Guess]]) -> None:
        self._guess = guess
        self.asked: list[tuple[int, ...]] = []
        self.widths: list[int] = []

    def start(self, history: Sequence[int]) -> None: ...

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Any:
        assert len(frontier) > 0, "a drafter is asked about some node"
        self.asked.append(tuple(frontier))
        self.widths.append(width)
        return [self._guess(tree, node, width, context) for node in frontier]

    def extra_rows(self, tree: TokenTree) -> Sequence[Any]:
        return ()

    def observe(self, round: Round) -> None: ...


def counting_up(tree: TokenTree, node: int, width: int, context: Context) -> list[Guess]:
    """Guesses without any knowledge: the next numbers after the node's token."""
    return [Guess((tree.tokens[node] + 1 + i) % context.vocab_size, proposer="up") for i in range(width)]
