"""The parallel heads while they draft: one call for a whole tree."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specchat.core.states import TextStates
from specchat.core.trained_network import Ahead, Guessed
from specchat.core.tree import TokenTree
from specchat.models.learned.drafting_inputs import DraftingInputs
from specchat.models.learned.guesses_by_depth import of_depths
from specchat.models.learned.medusa import Medusa


class MedusaDrafting:
    """A `TrainedNetwork`: what follows a node depends on its depth alone."""

    def __init__(self, network: Medusa, given: DraftingInputs) -> None:
        self.layers = frozenset(network.sizes.taps)
        self.depth = network.sizes.heads
        self.passes = 0
        self._network, self._given = network, given
        self._text: Sequence[int] = ()
        self._guessed: Guessed | None = None

    def take(self, states: TextStates) -> None:
        self._given.take(states)

    def skip(self, first: int, tokens: Sequence[int]) -> None:
        self._given.skip(first, tokens)

    def begin(self, history: Sequence[int], ahead: Ahead | None = None) -> bool:
        del ahead  # one call answers everything
        self._guessed, self._text = None, history
        return self._given.complete(history)

    def compiled(self, tokens: Sequence[int], rows: int) -> None:
        return None

    def count_passes(self, count: int) -> None:
        self.passes += count

    @torch.inference_mode()
    def read(self, tree: TokenTree, nodes: Sequence[int]) -> Guessed:
        """The guesses of their depth for each of these nodes."""
        if self._guessed is None:
            given, entries = self._given, len(self._text) - 1
            states = self._network.step(given.text.rows(entries - 1, entries), given.tokens.of(self._text[-1:]))
            self._guessed = given.guessed(states[0])
            self.passes += 1
        return of_depths(self._guessed, [tree.depths[node] for node in nodes])
