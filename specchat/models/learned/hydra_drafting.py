"""The sequential MLP while it drafts: the states of one tree's nodes."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from specchat.core.states import TextStates
from specchat.core.trained_network import Guessed
from specchat.core.tree import ROOT, TokenTree
from specchat.models.learned.drafting_inputs import DraftingInputs
from specchat.models.learned.hydra import Hydra
from specchat.models.learned.hydra_steps import steps_of


class HydraDrafting:
    """A `TrainedNetwork`: one step per depth, whatever the width."""

    depth = sys.maxsize

    def __init__(self, network: Hydra, given: DraftingInputs) -> None:
        self.layers = frozenset(network.sizes.taps)
        self.passes = 0
        self._given, self._steps = given, steps_of(network, given)
        self._last = 0  # position of the token before the root
        self._state_of: dict[int, int] = {}

    def take(self, states: TextStates) -> None:
        self._given.take(states)

    def skip(self, first: int, tokens: Sequence[int]) -> None:
        self._given.skip(first, tokens)

    def begin(self, history: Sequence[int]) -> bool:
        self._state_of, self._last = {}, len(history) - 2
        return self._given.complete(history)

    def read(self, tree: TokenTree, nodes: Sequence[int]) -> Guessed:
        """One step for nodes of one depth."""
        tokens = [tree.tokens[node] for node in nodes]
        if nodes[0] == ROOT:
            said = self._steps.first(self._last, tokens[0])
        else:
            said = self._steps.after([self._state_of[tree.parents[node]] for node in nodes], tokens)
        for node in nodes:
            self._state_of[node] = len(self._state_of)
        self.passes += 1
        return said
