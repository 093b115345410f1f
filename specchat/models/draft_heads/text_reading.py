"""What parallel and regressive heads begin with: the text's last entry, read with or without the text before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from specchat.core.states import TextStates
from specchat.models.draft_heads.attention_rows import AttentionRows
from specchat.models.draft_heads.decoder_layer import DecoderLayer
from specchat.models.draft_heads.drafting_inputs import DraftingInputs
from specchat.models.draft_heads.medusa import Medusa
from specchat.models.draft_heads.text_entries import TextEntries


class RootReading(Protocol):
    """What a network makes of the last entry of the text, which is the root's."""

    passes: int
    """Of what makes it, so far."""

    @property
    def skip(self) -> Callable[[int, Sequence[int]], None] | None:
        """As `TrainedNetwork.skip`."""

    def take(self, states: TextStates) -> None:
        """As `TrainedNetwork.take`."""

    def begin(self, history: Sequence[int]) -> bool:
        """A tree is to grow below the last token of this text. False where states of the text are missing."""

    def root(self) -> Tensor:
        """(n, d) what the network begins with, n most often 1. Asked once for each tree."""


class LastEntryAlone:
    """A `RootReading` of heads that look at no other entry."""

    def __init__(self, network: Medusa, given: DraftingInputs) -> None:
        self.passes = 0
        self._network, self._given = network, given
        self.take, self.skip = given.take, given.skip
        self._text: Sequence[int] = ()

    def begin(self, history: Sequence[int]) -> bool:
        self._text = history
        return self._given.complete(history)

    def root(self) -> Tensor:
        given, entries = self._given, len(self._text) - 1
        self.passes += 1
        return self._network.entries(given.text.rows(entries - 1, entries), given.tokens.of(self._text[-1:]))


class ReadsText(Protocol):
    """A network with layers that attend to the text."""

    @property
    def text_layers(self) -> Sequence[DecoderLayer]: ...

    def entries(self, inputs: Tensor, tokens: Tensor, over: Callable[[DecoderLayer, Tensor], Tensor]) -> Tensor: ...


class WholeText:
    """A `RootReading` of networks with layers that attend to the text: what came to it is read when a tree begins."""

    skip = None  # it reads the whole text

    def __init__(self, network: ReadsText, given: DraftingInputs) -> None:
        self.passes = 0
        self._network, self._given = network, given
        self._entries = TextEntries(given)
        self._rows = {layer: AttentionRows(layer.sizes.kv_heads, layer.sizes.head_dim) for layer in network.text_layers}
        self._root = torch.empty(0)

    def take(self, states: TextStates) -> None:
        self._entries.take(states)

    @torch.inference_mode()
    def begin(self, history: Sequence[int]) -> bool:
        if not self._given.complete(history):
            return False
        for first, inputs, tokens in self._entries.unread(history):
            self._root = self._network.entries(inputs, tokens, partial(self._over, first))[-1:]
            self.passes += 1
        return True

    def root(self) -> Tensor:
        return self._root

    def _over(self, first: int, layer: DecoderLayer, states: Tensor) -> Tensor:
        return layer.behind(self._rows[layer], first, states)
