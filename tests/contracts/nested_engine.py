"""A whole engine as the drafter of a bigger one, for tests alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specchat.core.context import Context
from specchat.core.seams import Drafter, Model, Proposal
from specchat.core.tree import ROOT, Guess, TokenTree
from specchat.decoding.speculate import Speculator


class NestedEngine(Drafter):
    """A whole engine as the drafter of a bigger one: its own target, drafter, tree, rule and noise.

    At the root it writes as many tokens as a tree may be deep; then it hands them out level by level.
    """

    def __init__(
        self, inner: Callable[[Model], Speculator], draft: Model, ahead: int = 4, label: str | None = "nested"
    ) -> None:
        self._inner = inner(draft)
        self._draft = draft
        self._ahead = ahead
        self._label = label
        self._written: list[int] = []

    @property
    def passes(self) -> int:
        return self._draft.counters.passes

    def start(self, history: Sequence[int]) -> None:
        self._inner.start(history)

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        if list(frontier) == [ROOT]:
            self._written = self._write(context)
        return [self._guesses(tree, node) for node in frontier]

    def _guesses(self, tree: TokenTree, node: int) -> list[Guess]:
        depth = tree.depths[node]
        if depth < len(self._written) and tree.path_tokens(node) == self._written[:depth]:
            return [Guess(self._written[depth], proposer="nested")]
        return []

    def _write(self, context: Context) -> list[int]:
        noise = context.noise if self._label is None else context.noise.child(self._label)
        inner = Context(list(context.history), context.prompt_tokens, context.vocab_size, context.sampling, noise)
        self._inner.start(inner.history)
        while len(inner.history) < len(context.history) + self._ahead:
            self._inner.round(inner)
        return inner.history[len(context.history) :][: self._ahead]
