"""The sequential MLP while it drafts: the states of one tree's nodes."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from torch import Tensor

from specchat.core.states import TextStates
from specchat.core.trained_network import Guessed
from specchat.core.tree import ROOT, TokenTree
from specchat.models.learned.ground import Ground
from specchat.models.learned.hydra import Hydra


class HydraDrafting:
    """A `TrainedNetwork`: one step per depth, whatever the width."""

    depth = sys.maxsize

    def __init__(self, network: Hydra, ground: Ground) -> None:
        self.layers = frozenset(network.sizes.taps)
        self.passes = 0
        self._network, self._ground = network, ground
        self._entries = 0
        self._row_of: dict[int, int] = {}
        self._states = torch.empty(0)

    def take(self, states: TextStates) -> None:
        self._ground.take(states)

    @torch.inference_mode()
    def begin(self, history: Sequence[int]) -> bool:
        self._row_of, self._entries = {}, len(history) - 1
        return self._ground.complete(history)

    @torch.inference_mode()
    def read(self, tree: TokenTree, nodes: Sequence[int]) -> Guessed:
        """One step for nodes of one depth."""
        states = self._network.step(
            self._inputs(tree, nodes), self._ground.tokens.of([tree.tokens[node] for node in nodes])
        )
        first = len(self._row_of)
        self._row_of.update(zip(nodes, range(first, first + len(nodes)), strict=True))
        self._states = states if first == 0 else torch.cat([self._states, states])
        self.passes += 1
        return self._ground.head.guessed(states)

    def _inputs(self, tree: TokenTree, nodes: Sequence[int]) -> Tensor:
        if nodes[0] == ROOT:
            return self._ground.text.rows(self._entries - 1, self._entries)
        return self._network.fed_back(self._states[[self._row_of[tree.parents[node]] for node in nodes]])
