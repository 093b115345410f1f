"""The decoder layer with masks while it drafts: one pass reads what is new of the text, and the masks."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specchat.core.states import TextStates
from specchat.core.trained_network import Ahead, Guessed
from specchat.core.tree import TokenTree
from specchat.models.learned.drafting_inputs import DraftingInputs
from specchat.models.learned.guesses_by_depth import of_depths
from specchat.models.learned.layer_reading import LayerReading
from specchat.models.learned.parallel_spec import ParallelSpec


class ParallelSpecDrafting:
    """A `TrainedNetwork`: what follows a node depends on its depth alone. The masks are read again for every tree."""

    skip = None  # it reads the whole text

    def __init__(self, network: ParallelSpec, given: DraftingInputs) -> None:
        self.layers = frozenset(network.sizes.taps)
        self.depth = 1 + network.sizes.masks
        self._given, self._reading = given, LayerReading(network.layer, given)
        with torch.inference_mode():
            self._masks = network.mask_states, network.of_tokens(network.mask_tokens)
        self._states = torch.empty(0)  # (depth, d)
        self._guessed: Guessed | None = None

    @property
    def passes(self) -> int:
        return self._reading.passes

    def take(self, states: TextStates) -> None:
        self._reading.take(states)

    @torch.inference_mode()
    def begin(self, history: Sequence[int], ahead: Ahead | None = None) -> bool:
        del ahead  # one pass answers everything
        self._guessed = None
        if not self._given.complete(history):
            return False
        self._states = self._reading.text(history, *self._masks)
        return True

    def compiled(self, tokens: Sequence[int], rows: int) -> None:
        return None

    def count_passes(self, count: int) -> None:
        self._reading.passes += count

    @torch.inference_mode()
    def read(self, tree: TokenTree, nodes: Sequence[int]) -> Guessed:
        """The guesses of their depth for each of these nodes."""
        if self._guessed is None:
            self._guessed = self._given.guessed(self._states)
        return of_depths(self._guessed, [tree.depths[node] for node in nodes])
