"""The steps of the sequential MLP over one tree's nodes: by torch, or by the compiled kernels, a tree a call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from specchat.core.compiled_guessing import CompiledNetwork
from specchat.core.drafting_networks import Ahead, Guessed
from specchat.core.states import HostRow
from specchat.models.cpu_kernels.hydra import Named, NativeHydra, Row
from specchat.models.cpu_kernels.kernels import kernels_for
from specchat.models.cpu_kernels.linear import NativeHead, NativeLinear
from specchat.models.draft_heads.drafting_inputs import DraftingInputs
from specchat.models.draft_heads.hydra import Hydra


class HydraSteps(Protocol):
    """Rows of a tree, a token behind another row each, counted in the order they are read; and what follows each."""

    def first(self, position: int, root: int, ahead: Ahead | None) -> list[Row]:
        """Forget the last tree: read the root, a token behind this position of the text, and perhaps rows below it.

        Returns:
            The rows that were read.
        """

    def after(self, parents: Sequence[int], tokens: Sequence[int]) -> None:
        """Read tokens that follow these rows."""

    def said(self, rows: Sequence[int]) -> Guessed:
        """What follows these rows."""

    def compiled(self, position: int, tokens: Sequence[int], rows: int) -> CompiledNetwork | None:
        """Forget the last tree; how compiled code reads one behind this position. See `TrainedNetwork`."""


class TorchSteps:
    """`HydraSteps` of a module."""

    def __init__(self, network: Hydra, given: DraftingInputs) -> None:
        self._network, self._given = network, given
        self._states = torch.empty(0)

    @torch.inference_mode()
    def first(self, position: int, root: int, ahead: Ahead | None) -> list[Row]:
        self._states = self._step(self._given.text.rows(position, position + 1), [root])
        return [(-1, root)]

    @torch.inference_mode()
    def after(self, parents: Sequence[int], tokens: Sequence[int]) -> None:
        states = self._step(self._network.fed_back(self._states[list(parents)]), tokens)
        self._states = torch.cat([self._states, states])

    @torch.inference_mode()
    def said(self, rows: Sequence[int]) -> Guessed:
        return self._given.guessed(self._states[list(rows)])

    def compiled(self, position: int, tokens: Sequence[int], rows: int) -> None:
        return None

    def _step(self, inputs: Tensor, tokens: Sequence[int]) -> Tensor:
        return self._network.step(inputs, self._given.tokens.of(tokens))


class NativeSteps:
    """The same in C. The text's states are fused where a tree begins, not wherever they come from."""

    def __init__(self, network: NativeHydra, given: DraftingInputs) -> None:
        self._network, self._given = network, given
        self._named: Named | None = None

    def first(self, position: int, root: int, ahead: Ahead | None) -> list[Row]:
        inputs = self._given.tokens.within([root])
        return self._network.first(self._head, self._states(position), inputs, root, ahead)

    def after(self, parents: Sequence[int], tokens: Sequence[int]) -> None:
        self._network.after(self._head, self._given.tokens.within(tokens), parents, tokens)

    def said(self, rows: Sequence[int]) -> Guessed:
        return self._network.said(self._head, rows)

    def compiled(self, position: int, tokens: Sequence[int], rows: int) -> CompiledNetwork:
        inputs = self._given.tokens.within(tokens)
        return self._network.compiled(self._head, self._states(position), inputs, rows)

    def _states(self, position: int) -> HostRow | Tensor:
        return self._given.text.host_row(position) or self._given.text.at(position)

    @property
    def _head(self) -> Named:
        head = self._given.head
        if self._named is None or self._named.tokens is not head.tokens:
            assert isinstance(head.product, NativeHead), "loading gives kernels to all of a network or to nothing"
            self._named = Named(head.product, head.tokens)
        return self._named


def steps_of(network: Hydra, given: DraftingInputs) -> HydraSteps:
    """In C where the network's products are, on the target's threads, which have nothing else to do meanwhile."""
    if isinstance(network.fuse, NativeLinear):
        return NativeSteps(NativeHydra(kernels_for(), given.threads, network), given)
    return TorchSteps(network, given)
