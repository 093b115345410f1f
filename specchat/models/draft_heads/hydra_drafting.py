"""The sequential MLP while it drafts: the states of one tree's nodes."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from specchat.core.compiled_guessing import CompiledNetwork
from specchat.core.drafting_networks import Ahead, Guessed
from specchat.core.states import TextStates
from specchat.core.tree import ROOT, TokenTree
from specchat.models.cpu_kernels.hydra import Row
from specchat.models.draft_heads.drafting_inputs import DraftingInputs
from specchat.models.draft_heads.hydra import Hydra
from specchat.models.draft_heads.hydra_steps import steps_of


class HydraDrafting:
    """A `TrainedNetwork`: one step per depth, whatever the width; where it runs in C, all steps of a tree at once."""

    depth = sys.maxsize

    def __init__(self, network: Hydra, given: DraftingInputs) -> None:
        self.layers = frozenset(network.sizes.taps)
        self.passes = 0
        self._given, self._steps = given, steps_of(network, given)
        self._last = 0  # position of the token before the root
        self._ahead: Ahead | None = None
        self._row_of: dict[int, int] = {}  # node → row
        self._rows: dict[Row, int] = {}  # by what they follow and their token

    def take(self, states: TextStates) -> None:
        self._given.take(states)

    def skip(self, first: int, tokens: Sequence[int]) -> None:
        self._given.skip(first, tokens)

    def begin(self, history: Sequence[int], ahead: Ahead | None = None) -> bool:
        self._last, self._ahead = len(history) - 2, ahead
        return self._given.complete(history)

    def compiled(self, tokens: Sequence[int], rows: int) -> CompiledNetwork | None:
        return self._steps.compiled(self._last, tokens, rows)

    def count_passes(self, count: int) -> None:
        self.passes += count

    def read(self, tree: TokenTree, nodes: Sequence[int]) -> Guessed:
        """What follows nodes of one depth, which are read now unless they were read ahead."""
        self.passes += 1
        if nodes[0] == ROOT:
            read = self._steps.first(self._last, tree.tokens[ROOT], self._ahead)
            self._rows, self._row_of = {row: place for place, row in enumerate(read)}, {ROOT: 0}
            return self._steps.said([0])
        wanted = [(self._row_of[tree.parents[node]], tree.tokens[node]) for node in nodes]
        if unread := [row for row in wanted if row not in self._rows]:
            self._rows.update(zip(unread, range(len(self._rows), len(self._rows) + len(unread)), strict=True))
            self._steps.after([parent for parent, _ in unread], [token for _, token in unread])
        rows = [self._rows[row] for row in wanted]
        self._row_of.update(zip(nodes, rows, strict=True))
        return self._steps.said(rows)
