"""The base of drafters that draft with a part of the target: a view of it, on the target's own rows of the text."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from specchat.core.context import Context
from specchat.core.round import Round
from specchat.core.seams import Drafter, Model, Proposal
from specchat.core.tree import ROOT, DrawKind, TokenTree
from specchat.drafters.draft_model import DraftModel
from specchat.drafters.options import DraftModelOptions
from specchat.drafters.parts import Parts
from specchat.drafters.point_guesses import for_frontier


class ViewDrafter(Drafter):
    """Drafts as `draft_model` does, with a view of the target that may be exchanged for another one.

    Before each tree the view's cache holds copies of the target's rows for the whole text. So it never reads a prompt,
    and rows that it computed itself go when the round is over. What the target does not hold yet it reads itself.

    Nothing is guessed below a node whose parent was unsure. That looks at the law after the parent, never at the token
    drawn from it, so sampled draws keep their distribution.
    """

    kinds = frozenset(DrawKind)
    """All kinds: the view has a law of its own."""

    def __init__(self, parts: Parts, view: Model, sure: float = 0.0) -> None:
        """Nothing read yet. No guess below a node after whose parent the likeliest token is less likely than `sure`."""
        self._parts = parts
        self.sure = sure
        self._passes_before = 0
        self._tree: TokenTree | None = None
        self._use(view)

    @property
    def passes(self) -> int:
        return self._passes_before + self.view.counters.passes

    def use(self, view: Model) -> None:
        """Draft with another view from the next tree on."""
        self._passes_before = self.passes
        self._tree = None
        self._use(view)

    def start(self, history: Sequence[int]) -> None:
        """Hold the text up to its last token."""
        self._tree = None
        self._hold(history[:-1])
        self._inner.start(history)

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        """Guesses for the nodes whose parents were sure; nothing where passes are not allowed."""
        if self._tree is not tree and context.passes:
            self._tree = tree
            self._hold(context.history[:-1])
        nodes = [node for node in frontier if self._goes_on(tree, node)]
        return for_frontier(frontier, nodes, self._inner.propose(tree, nodes, width, context))

    def observe(self, round: Round) -> None:
        self._tree = None
        self._inner.observe(round)

    def close(self) -> None:
        self._inner.close()

    def _use(self, view: Model) -> None:
        self.view = view
        self._inner = DraftModel(DraftModelOptions(trim=0), dataclasses.replace(self._parts, draft_model=view))

    def _hold(self, text: Sequence[int]) -> None:
        if len(text) < self.view.context_tokens:
            self.view.copy_rows_from(text, range(len(text)))

    def _goes_on(self, tree: TokenTree, node: int) -> bool:
        sureness = None if node == ROOT else self._inner.sureness(tree, tree.parents[node])
        return sureness is None or sureness >= self.sure
