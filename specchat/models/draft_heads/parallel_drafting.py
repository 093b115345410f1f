"""Parallel heads while they draft: one call for a whole tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from specchat.core.drafting_networks import Ahead, Guessed
from specchat.core.states import TextStates
from specchat.core.tree import TokenTree
from specchat.models.draft_heads.amphista import Amphista
from specchat.models.draft_heads.drafting_inputs import DraftingInputs
from specchat.models.draft_heads.medusa import Medusa
from specchat.models.draft_heads.parallel_spec import ParallelSpec
from specchat.models.draft_heads.text_reading import RootReading


class ParallelDrafting:
    """A `TrainedNetwork`: what follows a node depends on its depth alone."""

    def __init__(
        self,
        reading: Callable[[Any, DraftingInputs], RootReading],
        network: Medusa | Amphista | ParallelSpec,
        given: DraftingInputs,
    ) -> None:
        self.layers = frozenset(network.sizes.taps)
        self.depth = network.depth
        self._network, self._given, self._reading = network, given, reading(network, given)
        self._guessed: Guessed | None = None

    @property
    def passes(self) -> int:
        return self._reading.passes

    def take(self, states: TextStates) -> None:
        self._reading.take(states)

    @property
    def skip(self) -> Callable[[int, Sequence[int]], None] | None:
        return self._reading.skip

    def begin(self, history: Sequence[int], ahead: Ahead | None = None) -> bool:
        del ahead  # one call answers everything
        self._guessed = None
        return self._reading.begin(history)

    def compiled(self, tokens: Sequence[int], rows: int) -> None:
        return None

    def count_passes(self, count: int) -> None:
        self._reading.passes += count

    @torch.inference_mode()
    def read(self, tree: TokenTree, nodes: Sequence[int]) -> Guessed:
        """The guesses of their depth for each of these nodes."""
        if self._guessed is None:
            self._guessed = self._given.guessed(self._network.ahead(self._reading.root()).flatten(0, -2))
        return self._guessed.of([tree.depths[node] for node in nodes])
