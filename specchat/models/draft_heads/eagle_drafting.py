"""The decoder layer while it drafts: keys and values of the text and of one tree's nodes."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch

from specchat.core.drafting_networks import Ahead, Guessed
from specchat.core.states import TextStates
from specchat.core.tree import ROOT, TokenTree
from specchat.models.draft_heads.drafting_inputs import DraftingInputs
from specchat.models.draft_heads.eagle import Eagle
from specchat.models.draft_heads.layer_reading import LayerReading


class EagleDrafting:
    """A `TrainedNetwork`: entries of the text are read when a tree begins, nodes depth by depth.

    Nodes are written behind the text's entries and are forgotten with their tree: once their tokens are part of the
    text they are read again, from the target's own states.
    """

    depth = sys.maxsize
    skip = None  # it reads the whole text

    def __init__(self, network: Eagle, given: DraftingInputs) -> None:
        self.layers = frozenset(network.sizes.taps)
        self._given, self._reading = given, LayerReading(network, given)
        self._row_of: dict[int, int] = {}  # nodes below the root → row behind the entries
        self._states = torch.empty(0)

    @property
    def passes(self) -> int:
        return self._reading.passes

    def take(self, states: TextStates) -> None:
        self._reading.take(states)

    def begin(self, history: Sequence[int], ahead: Ahead | None = None) -> bool:
        del ahead  # attention reads one level at a time
        self._row_of = {}
        return self._reading.begin(history)

    def compiled(self, tokens: Sequence[int], rows: int) -> None:
        return None

    def count_passes(self, count: int) -> None:
        self._reading.passes += count

    @torch.inference_mode()
    def read(self, tree: TokenTree, nodes: Sequence[int]) -> Guessed:
        """One step for nodes of one depth; the root's is done."""
        if nodes[0] == ROOT:
            return self._given.guessed(self._reading.root())
        entries, first = self._reading.entries, len(self._row_of)
        self._row_of.update(zip(nodes, range(first, first + len(nodes)), strict=True))
        seen = torch.zeros(len(nodes), entries + len(self._row_of), dtype=torch.bool)
        seen[:, :entries] = True
        for row, node in enumerate(nodes):
            seen[row, [entries + self._row_of[above] for above in tree.path(node)]] = True
        parents = [self._row_of[tree.parents[node]] + 1 if tree.parents[node] != ROOT else 0 for node in nodes]
        before = self._reading.root() if first == 0 else self._states
        tokens = self._given.tokens.of([tree.tokens[node] for node in nodes])
        positions = torch.full((len(nodes),), entries - 1 + tree.depths[nodes[0]])
        states = self._reading.step(before[parents], tokens, positions, entries + first, seen)
        self._states = torch.cat([before, states])
        return self._given.guessed(states)
