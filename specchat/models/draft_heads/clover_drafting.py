"""Heads in a row while they draft: the running states of one tree's nodes."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch

from specchat.core.drafting_networks import Ahead, Guessed
from specchat.core.states import TextStates
from specchat.core.tree import ROOT, TokenTree
from specchat.models.draft_heads.clover import Clover
from specchat.models.draft_heads.drafting_inputs import DraftingInputs
from specchat.models.draft_heads.text_reading import WholeText


class CloverDrafting:
    """A `TrainedNetwork`: entries of the text are read when a tree begins, then one step per depth."""

    depth = sys.maxsize
    skip = None  # it reads the whole text

    def __init__(self, network: Clover, given: DraftingInputs) -> None:
        self.layers = frozenset(network.sizes.taps)
        self._network, self._given, self._text = network, given, WholeText(network, given)
        self._running = torch.empty(0)
        self._row_of: dict[int, int] = {}  # node → row of its running state

    @property
    def passes(self) -> int:
        return self._text.passes

    def take(self, states: TextStates) -> None:
        self._text.take(states)

    def begin(self, history: Sequence[int], ahead: Ahead | None = None) -> bool:
        del ahead  # a step needs the tokens that were guessed before
        return self._text.begin(history)

    def compiled(self, tokens: Sequence[int], rows: int) -> None:
        return None

    def count_passes(self, count: int) -> None:
        self._text.passes += count

    @torch.inference_mode()
    def read(self, tree: TokenTree, nodes: Sequence[int]) -> Guessed:
        """One step for nodes of one depth; the text was read as far as the root."""
        if nodes[0] == ROOT:
            self._running, self._row_of = self._text.root(), {ROOT: 0}
            return self._given.guessed(self._network.at_root(self._running))
        parents = [self._row_of[tree.parents[node]] for node in nodes]
        tokens = self._given.tokens.of([tree.tokens[node] for node in nodes])
        running, states = self._network.step(self._running[parents], tokens)
        self._text.passes += 1
        self._row_of.update(zip(nodes, range(len(self._running), len(self._running) + len(nodes)), strict=True))
        self._running = torch.cat([self._running, running])
        return self._given.guessed(states)
