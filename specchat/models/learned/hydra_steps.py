"""The steps of the sequential MLP over one tree's nodes: by torch, or a level a call by the compiled kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from specchat.core.trained_network import Guessed
from specchat.models.learned.drafting_inputs import DraftingInputs
from specchat.models.learned.hydra import Hydra
from specchat.models.native.hydra import Named, NativeHydra
from specchat.models.native.linear import NativeHead, NativeLinear


class HydraSteps(Protocol):
    """States of a tree's nodes, counted in the order they are made, and what follows each."""

    def first(self, position: int, root: int) -> Guessed:
        """Forget the last tree: the root, a token behind this position of the text."""

    def after(self, parents: Sequence[int], tokens: Sequence[int]) -> Guessed:
        """Tokens that follow these states."""


class TorchSteps:
    """`HydraSteps` of a module."""

    def __init__(self, network: Hydra, given: DraftingInputs) -> None:
        self._network, self._given = network, given
        self._states = torch.empty(0)

    @torch.inference_mode()
    def first(self, position: int, root: int) -> Guessed:
        self._states = self._step(self._given.text.rows(position, position + 1), [root])
        return self._given.guessed(self._states)

    @torch.inference_mode()
    def after(self, parents: Sequence[int], tokens: Sequence[int]) -> Guessed:
        states = self._step(self._network.fed_back(self._states[list(parents)]), tokens)
        self._states = torch.cat([self._states, states])
        return self._given.guessed(states)

    def _step(self, inputs: Tensor, tokens: Sequence[int]) -> Tensor:
        return self._network.step(inputs, self._given.tokens.of(tokens))


class NativeSteps:
    """The same in C. The text's states are fused where a tree begins, not wherever they come from."""

    def __init__(self, network: NativeHydra, given: DraftingInputs) -> None:
        self._network, self._given = network, given

    @torch.inference_mode()
    def first(self, position: int, root: int) -> Guessed:
        table, (place,) = self._given.tokens.within([root])
        self._network.begin()
        return self._network.first(self._head, self._given.text.at(position), table, place)

    @torch.inference_mode()
    def after(self, parents: Sequence[int], tokens: Sequence[int]) -> Guessed:
        table, places = self._given.tokens.within(tokens)
        return self._network.after(self._head, parents, table, places)

    @property
    def _head(self) -> Named:
        head = self._given.head
        assert isinstance(head.product, NativeHead), "loading gives kernels to all of a network or to nothing"
        return Named(head.product, head.tokens)


def steps_of(network: Hydra, given: DraftingInputs) -> HydraSteps:
    """In C where the network's products are."""
    if isinstance(network.fuse, NativeLinear):
        return NativeSteps(NativeHydra(network.fuse.kernels, network), given)
    return TorchSteps(network, given)
